//! Events of the TLS layer, for metrics and logs.

use std::sync::Arc;

use jiff::Timestamp;

use crate::tls::server::callers::Refusal;

/// Events of this layer, for metrics and logs.
#[derive(Clone, Debug)]
pub enum Event {
    /// A new certificate is served.
    Reloaded {
        /// When it expires.
        not_after: Timestamp,
    },
    /// The files are not a valid pair; the last good one is still served.
    ReloadFailed {
        /// The reason.
        error: String,
    },
    /// The leaf was renewed from the stored CA.
    Renewed {
        /// When the new leaf expires.
        not_after: Timestamp,
    },
    /// A connection was accepted.
    Opened,
    /// A connection was closed.
    Closed,
    /// A connection was closed in favor of another one.
    ConnectionEnded,
    /// A connection was refused, because all others had requests in progress.
    ConnectionRefused,
    /// A handshake failed or timed out.
    HandshakeFailed,
    /// A handshake failed because of the caller's certificate; [`Event::HandshakeFailed`] is reported as well.
    CallerRefused(Refusal),
    /// New CAs of callers are trusted.
    CallersReloaded,
    /// The file with callers' CAs is not valid; the last good CAs are still trusted.
    CallersReloadFailed {
        /// The reason.
        error: String,
    },
    /// `accept` failed; the loop waits before it retries.
    AcceptFailed {
        /// The reason.
        error: String,
    },
}

/// Receives every [`Event`].
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;
