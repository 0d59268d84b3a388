//! `nodegate certs`: shows and renews the certificates of a directory.

mod document;

use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;

use super::Findings;
use super::lines::Lines;
use super::output::{self, Format};
use crate::tls::{Directory, DirectoryOwner, Pair, SubjectName};
pub(crate) use document::Certificates;
use document::{CaCertificate, Owner, ServerCertificate};

/// Create, show or renew the certificates of a directory.
///
/// In an empty directory, nodegate creates a CA and a certificate. Files from another source are only shown. Fingerprints are
/// the ones that `openssl x509 -noout -fingerprint -sha256` prints. Exit with 1 if the certificate has expired.
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
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
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
    let authorities = directory.authorities().context("--cert-dir")?;
    let certificates = Certificates {
        directory: args.cert_dir.display().to_string(),
        owner: directory.owner().into(),
        certificate: ServerCertificate::new(&pair, now),
        authorities: authorities.into_iter().map(|authority| CaCertificate::new(authority, now)).collect(),
    };
    match args.output {
        Format::Table => output::print_lines(&text(&certificates, days_left(&pair, now)))?,
        format => output::print(&output::structured(format, &certificates)?)?,
    }
    Ok(if certificates.certificate.expired { Findings::Some } else { Findings::None })
}

fn days_left(pair: &Pair, now: Timestamp) -> i64 {
    (pair.not_after().as_second() - now.as_second()) / 86_400
}

fn text(certificates: &Certificates, days: i64) -> Lines {
    let Certificates { directory, owner, certificate, authorities } = certificates;
    let owner = match owner {
        Owner::Nodegate => "nodegate (ca.key is present; nodegate renews the certificate)",
        Owner::External => "external (nodegate only reads the files, and reloads them when they change)",
    };
    let ServerCertificate { subject, names, not_before, not_after, expired: _, sha256 } = certificate;
    let mut lines = Lines::new(false);
    lines.add("", &format!("directory  {directory}"));
    lines.add("", &format!("owner      {owner}"));
    lines.add("", &format!("subject    {subject}"));
    lines.add("", &format!("names      {}", names.join(", ")));
    lines.add("", &format!("valid      {not_before} to {not_after} ({days} days left)"));
    lines.add("", &format!("sha256     {sha256}"));
    for CaCertificate { subject, not_before, not_after, expired, sha256 } in authorities {
        let expired = if *expired { " (expired)" } else { "" };
        lines.add("", "");
        lines.add("", &format!("CA         {subject}"));
        lines.add("", &format!("valid      {not_before} to {not_after}{expired}"));
        lines.add("", &format!("sha256     {sha256}"));
    }
    lines
}
