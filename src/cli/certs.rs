//! `nodegate certs`: shows and renews the certificates of a directory.

use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;

use super::{Findings, output};
use crate::tls::{Directory, DirectoryOwner, SubjectName};

/// Create, show or renew the certificates of a directory.
///
/// In an empty directory, nodegate creates a CA and a certificate. Files from another source are only shown.
#[derive(Debug, clap::Args)]
pub(crate) struct CertsArgs {
    /// Certificate directory
    #[arg(long, value_name = "DIR", env = "NODEGATE_CERT_DIR", default_value = "certs")]
    cert_dir: PathBuf,
    /// Additional DNS name or IP address for the issued certificate, besides localhost, 127.0.0.1 and ::1
    #[arg(long = "cert-name", value_name = "NAME", env = "NODEGATE_CERT_NAME", value_delimiter = ',')]
    cert_names: Vec<SubjectName>,
    /// Issue a new certificate from the stored CA, even if the current one is not due for renewal
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
            "--renew: {} contains no ca.key, so nodegate did not issue its certificate and cannot renew it; renew it at its issuer",
            args.cert_dir.display()
        );
        directory.renew(now).context("--renew")?;
        pair = directory.read()?;
    }
    let owner = match directory.owner() {
        DirectoryOwner::Nodegate => "nodegate (ca.key is present; nodegate renews the certificate)",
        DirectoryOwner::Other => "external (nodegate only reads the files, and reloads them when they change)",
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
