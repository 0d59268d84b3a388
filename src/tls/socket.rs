//! The socket that connections come in on.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// What the system holds of a connection before it is read; Linux doubles it for its own bookkeeping. At a round trip of a
/// millisecond as much comes in a millisecond, so a review of 18 MB takes less than 0.3 s on its way.
const RECEIVE_BYTES: u32 = 64 * 1024;
/// How many connections the system keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Listens for TCP connections, of which the system holds no more than [`RECEIVE_BYTES`] each that nobody has read yet.
/// Left to itself it holds megabytes for every connection, and those count towards the memory of the pod.
///
/// # Errors
/// If the address cannot be listened on.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit it.
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
