//! `nodegate certs`: creates, shows and renews the certificates of a directory.

mod document;

use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;

use crate::cli::Findings;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::terminal_lines::Lines;
pub(crate) use document::Certificates;
use document::{CaCertificate, Owner, ServerCertificate};
use nodegate_webhook::tls::{Directory, DirectoryOwner, Pair, SubjectName};

/// Create, show or renew the certificates of a directory
///
/// Fingerprints are the ones that `openssl x509 -noout -fingerprint -sha256` prints. Exits with 1 if the certificate has expired.
#[derive(Debug, clap::Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Create a CA and a certificate in an empty directory, and show them
    ///
    /// If nodegate's files are there, the certificate is renewed only if it is due or lacks a name. Files of another issuer are
    /// not changed.
    Create(IssueArgs),
    /// Show the certificates of a directory, without changing anything
    Show(ShowArgs),
    /// Issue a new certificate from the CA that nodegate created, even if it is not due, and show it
    Renew(IssueArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Certificate directory
    #[arg(long, value_name = "DIR", env = "NODEGATE_CERT_DIR", default_value = "certs")]
    cert_dir: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl ShowArgs {
    /// Only `create` writes into a directory without a certificate.
    fn refuse_empty(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !matches!(self.cert_dir.join("tls.crt").try_exists(), Ok(false)),
            "--cert-dir: {} has no tls.crt; `nodegate certs create` creates a CA and a certificate there",
            self.cert_dir.display()
        );
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
struct IssueArgs {
    #[command(flatten)]
    show: ShowArgs,
    /// Additional DNS name or IP address for the issued certificate, besides localhost, 127.0.0.1 and ::1
    #[arg(long = "cert-name", value_name = "NAME", env = "NODEGATE_CERT_NAME", value_delimiter = ',')]
    cert_names: Vec<SubjectName>,
}

impl IssueArgs {
    fn open(&self, now: Timestamp) -> anyhow::Result<(Directory, Pair)> {
        let loopback = ["localhost", "127.0.0.1", "::1"].into_iter().filter_map(|name| name.parse().ok());
        let names: Vec<SubjectName> = loopback.chain(self.cert_names.iter().cloned()).collect();
        Directory::open(&self.show.cert_dir, &names, now).context("--cert-dir")
    }
}

pub(in crate::cli) fn run(args: &CertsArgs) -> anyhow::Result<Findings> {
    let now = Timestamp::now();
    match &args.action {
        Action::Create(args) => {
            let (directory, pair) = args.open(now)?;
            show(&args.show, &directory, &pair, now)
        }
        Action::Show(args) => {
            args.refuse_empty()?;
            let (directory, pair) = Directory::existing(&args.cert_dir).context("--cert-dir")?;
            show(args, &directory, &pair, now)
        }
        Action::Renew(args) => {
            args.show.refuse_empty()?;
            let (directory, _) = args.open(now)?;
            anyhow::ensure!(
                directory.owner() == DirectoryOwner::Nodegate,
                "renew: {} contains no ca.key, so nodegate did not issue its certificate and cannot renew it; renew it at its issuer",
                directory.path().display()
            );
            directory.renew(now).context("renew")?;
            show(&args.show, &directory, &directory.read()?, now)
        }
    }
}

fn show(args: &ShowArgs, directory: &Directory, pair: &Pair, now: Timestamp) -> anyhow::Result<Findings> {
    let authorities = directory.authorities().context("--cert-dir")?;
    let certificates = Certificates {
        directory: args.cert_dir.display().to_string(),
        owner: directory.owner().into(),
        certificate: ServerCertificate::new(pair, now),
        authorities: authorities.into_iter().map(|authority| CaCertificate::new(authority, now)).collect(),
    };
    output::show(args.output, &certificates, |certificates| text(certificates, days_left(pair, now)))?;
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
