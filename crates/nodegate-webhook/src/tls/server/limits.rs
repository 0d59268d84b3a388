//! Limits on connections.

use std::time::Duration;

/// Limits on the connections of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections, including those in a handshake. At the limit, each new one closes another
    /// one: if possible one on which no request succeeded, of these one of the peer with the most connections, and of
    /// these the one that has been waiting for longest. If all connections have a request in progress, the new one is
    /// refused.
    pub connections: usize,
    /// The same for the connections of one peer: an IPv4 address or an IPv6 /64.
    pub connections_of_peer: usize,
    /// Timeout of a handshake.
    pub handshake: Duration,
    /// How long a connection may wait, including between requests, before one of its requests succeeded. Of many calls at once,
    /// the API server opens connections that it uses only later, because another one became free first (Go, `net/http`,
    /// `Transport`).
    pub first_request: Duration,
    /// How long it may wait afterwards. The API server keeps idle connections for 90 s, used or not; closing one earlier may
    /// fail a call, because Go never repeats a POST.
    pub idle: Duration,
    /// How long a caller may take to read an answer.
    pub unread: Duration,
    /// How long requests in progress may take after shutdown.
    pub drain: Duration,
}

/// Longer than the API server keeps a connection that it does not use.
const IDLE: Duration = Duration::from_secs(120);

impl Default for Limits {
    /// Limits for the webhook. The API server opens a connection for each concurrent call; half of the connections
    /// suffice for one API server with the maximum number of concurrent calls.
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_peer: 512,
            handshake: Duration::from_secs(5),
            first_request: IDLE,
            idle: IDLE,
            unread: Duration::from_secs(10),
            drain: Duration::from_secs(15),
        }
    }
}

impl Limits {
    /// Limits for the probe address: the kubelet opens a connection for each probe, and Prometheus keeps one open.
    pub fn probes() -> Self {
        Self { connections: 128, connections_of_peer: 64, first_request: Duration::from_secs(2), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_closes_connections_that_it_does_not_use_before_nodegate_does() {
        // `k8s.io/apimachinery/pkg/util/net/http.go`, `SetTransportDefaults`.
        const API_SERVERS: Duration = Duration::from_secs(90);
        let Limits { first_request, idle, .. } = Limits::default();
        assert!(first_request > API_SERVERS && idle > API_SERVERS, "{first_request:?}, {idle:?}");
    }
}
