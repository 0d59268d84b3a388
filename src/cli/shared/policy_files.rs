//! Policies in files, as flags that several commands have.

use std::path::PathBuf;

use nodegate_stores::files::Sources;

/// Where policies are read from.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct PolicyFiles {
    /// NodePolicy file, or directory of them
    #[arg(long = "policy", value_name = "PATH", env = "NODEGATE_POLICY", value_delimiter = ',')]
    pub(in crate::cli) policies: Vec<PathBuf>,
    /// Directory of flat label files
    #[arg(long, value_name = "DIR", env = "NODEGATE_LABELS_DIR")]
    labels_dir: Option<PathBuf>,
}

impl PolicyFiles {
    pub(in crate::cli) fn sources(&self) -> Sources {
        Sources { policies: self.policies.clone(), labels_dir: self.labels_dir.clone(), ..Sources::default() }
    }
}
