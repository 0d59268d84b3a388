//! HTTPS: issues, stores, rotates, reloads and serves certificates; accepts, limits and drains connections.
//!
//! TLS 1.2 and 1.3 by rustls with aws-lc-rs. This layer does not depend on the service behind it.

mod authority;
mod bundle;
mod callers;
mod certificate;
mod connection;
mod connections;
mod directory;
mod event;
mod issue;
mod limits;
mod listen;
mod pair;
mod pem;
mod protocol;
mod rotate;
mod socket;
mod subject_name;
mod watch;
mod x509;

pub use authority::Authority;
pub use bundle::{Bundle, Phase, Unusable};
pub use callers::{Callers, CallersError, Refusal};
pub use certificate::{Certificate, https};
pub use connections::RequestBody;
pub use directory::{Directory, DirectoryError, DirectoryOwner};
pub use event::{Event, Observer};
pub use issue::IssueError;
pub use limits::Limits;
pub use listen::{Drained, serve};
pub use pair::{Pair, PairError};
pub use pem::certificates;
pub use protocol::{Https, Protocol};
pub use rotate::{Change, PROPAGATION, Step, step};
pub use socket::bind;
pub use subject_name::SubjectName;
pub use watch::{watch, watch_callers};
