//! The listening socket.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Receive buffer of a connection; Linux doubles it for its own bookkeeping. With a round trip time of one
/// millisecond, this amount arrives per millisecond, so a review of 18 MB takes less than 0.3 s.
const RECEIVE_BYTES: u32 = 64 * 1024;
/// How many connections the operating system queues until they are accepted.
const BACKLOG: u32 = 1024;

/// Listens for TCP connections with at most [`RECEIVE_BYTES`] of unread data each. By default, the operating system
/// buffers megabytes per connection, which count towards the memory of the pod.
///
/// # Errors
/// Returns an error if it cannot listen on the address.
///
/// # Panics
/// Panics outside of a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit this option.
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
