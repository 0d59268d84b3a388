//! `nodegate certs`: shows and renews a certificate directory.

use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;

use super::{Findings, output};
use crate::tls::{Directory, DirectoryOwner, SubjectName};

/// Make, show or renew the certificates of a directory.
///
/// An empty directory gets a CA and a certificate. Files that somebody else put there are only shown.
#[derive(Debug, clap::Args)]
pub(crate) struct CertsArgs {
    /// The directory.
    #[arg(long, value_name = "DIR", env = "NODEGATE_CERT_DIR", default_value = "certs")]
    cert_dir: PathBuf,
    /// Further name or address in our own certificate, besides localhost, 127.0.0.1 and ::1.
    #[arg(long = "cert-name", value_name = "NAME", env = "NODEGATE_CERT_NAME", value_delimiter = ',')]
    cert_names: Vec<SubjectName>,
    /// Issue a new certificate from the kept CA, even if the present one is not due.
    #[arg(long)]
    renew: bool,
}

pub(super) fn run(args: &CertsArgs) -> anyhow::Result<Findings> {
    let now = Timestamp::now();
    let loopback = ["localhost", "127.0.0.1", "::1"].into_iter().filter_map(|name| name.parse().ok());
    let names: Vec<SubjectName> = loopback.chain(args.cert_names.iter().cloned()).collect();
    let (directory, mut pair) = Directory::open(&args.cert_dir, &names, now).context("--cert-dir")?;
    if args.renew {
        anyhow::ensure!(
            directory.owner() == DirectoryOwner::Nodegate,
            "--renew: {} has no ca.key, so its certificate is somebody else's to renew",
            args.cert_dir.display()
        );
        directory.renew(now).context("--renew")?;
        pair = directory.read()?;
    }
    let owner = match directory.owner() {
        DirectoryOwner::Nodegate => "nodegate (has ca.key; renewed from the kept CA)",
        DirectoryOwner::Other => "somebody else (only read, reloaded when it changes)",
    };
    let days = (pair.not_after().as_second() - now.as_second()) / 86_400;
    output::print(&format!(
        "directory  {}\nowner      {owner}\nsubject    {}\nnames      {}\nvalid      {} to {} ({days} days left)\n",
        args.cert_dir.display(),
        pair.subject(),
        pair.names().join(", "),
        pair.not_before(),
        pair.not_after(),
    ))?;
    Ok(if pair.not_after() <= now { Findings::Some } else { Findings::None })
}
