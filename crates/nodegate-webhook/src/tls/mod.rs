//! HTTPS: issues, stores, rotates, reloads and serves certificates; accepts, limits and drains connections.
//!
//! TLS 1.2 and 1.3 by rustls with aws-lc-rs. This layer does not depend on the service behind it.

mod certificates;
mod server;

pub use certificates::authority::Authority;
pub use certificates::bundle::{Bundle, Phase, Unusable};
pub use certificates::directory::{Directory, DirectoryError, DirectoryOwner};
pub use certificates::issue::IssueError;
pub use certificates::pair::{Pair, PairError};
pub use certificates::pem::certificates;
pub use certificates::rotate::{Change, PROPAGATION, Step, step};
pub use certificates::subject_name::SubjectName;
pub use server::callers::{Callers, CallersError, Refusal};
pub use server::certificate::{Certificate, https};
pub use server::connections::RequestBody;
pub use server::event::{Event, Observer};
pub use server::limits::Limits;
pub use server::listen::{Drained, serve};
pub use server::protocol::{Https, Protocol};
pub use server::socket::bind;
pub use server::watch::{watch, watch_callers};
