//! `docs/migrating/`: a user of each older tool follows its tutorial, command by command, at the real API server. The tool itself does
//! not run: what it leaves in a cluster is created as it leaves it.

mod fako;
mod fleet;
mod job;
mod k8s_auto_labeller;
mod kopf;
mod label_files;
mod llm_d_lab;
pub(crate) mod pod;
mod script;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The metrics of nodegate that a file names.
fn metrics_named_in(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("nodegate_")).map(str::to_owned).collect()
}
