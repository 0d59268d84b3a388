//! Which clients may call the webhook: the flags of mutual TLS.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;

use nodegate_base::metrics::Metrics;
use nodegate_webhook::tls::{Callers, Refusal};

/// Flags of mutual TLS.
#[derive(Debug, clap::Args)]
pub(super) struct CallersArgs {
    /// CA certificates (PEM) of clients; watched for changes. Every client of the HTTPS address then needs a
    /// certificate; the probe address requires none
    #[arg(long, value_name = "FILE", env = "NODEGATE_CLIENT_CA_FILE")]
    client_ca_file: Option<PathBuf>,
    /// Common name or DNS name that a client certificate must have, exactly [default: any]
    #[arg(long = "client-name", value_name = "NAME", env = "NODEGATE_CLIENT_NAME", value_delimiter = ',', requires = "client_ca_file", value_parser = NonEmptyStringValueParser::new())]
    client_names: Vec<String>,
}

/// Which clients may call the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallersConfig {
    /// The CAs of client certificates.
    pub ca_file: PathBuf,
    /// The allowed names of client certificates; all if empty.
    pub names: Vec<String>,
}

impl CallersArgs {
    pub(super) fn config(self) -> Option<CallersConfig> {
        self.client_ca_file.map(|ca_file| CallersConfig { ca_file, names: self.client_names })
    }
}

impl CallersConfig {
    /// Reads the CA certificates.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a bundle of CA certificates.
    pub(super) fn open(self, metrics: &Metrics) -> anyhow::Result<Arc<Callers>> {
        let callers = Callers::open(&self.ca_file, self.names, Timestamp::now()).context("--client-ca-file")?;
        metrics.callers.begin(Refusal::ALL.map(Refusal::as_str));
        Ok(callers)
    }
}
