//! `nodegate verify --record`: what the API server knows of kubelets, for those who make presets for a platform.

mod case;
mod redacted;
mod review;
mod seen;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use kube::Client;
use serde::Serialize;

use self::case::{Case, POOL, PROOF, Presets, Test};
use self::redacted::{Pseudonyms, Redacted};
use self::review::Review;
use self::seen::{NODES_MAX, Seen};
use crate::cli::Findings;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::whole_file;
use nodegate_policy::simulate::{compile_inline, scene, simulate};
use nodegate_policy::{Exemptions, PolicySet, api};

/// The file with the cases.
const TEST: &str = "test.yaml";
/// Maximum size of a file, in bytes.
const FILE_MAX: usize = 256 * 1024;

/// Writes a recording of these nodes, or of the last ones that have joined, into a directory.
///
/// # Errors
/// Returns an error if a file is there already, if nothing is known of kubelets, or if the directory cannot be written.
pub(super) async fn record(client: &Client, directory: &Path, named: &[String]) -> anyhow::Result<Findings> {
    if named.len() > NODES_MAX {
        bail!("--node is given {} times; a recording has at most {NODES_MAX} nodes", named.len());
    }
    // Before the cluster is read.
    check_empty(directory)?;
    let set = presets()?;
    let seen = seen::nodes(client, named, &set).await?;
    let mut pseudonyms = Pseudonyms::default();
    let (mut files, mut cases) = (Vec::new(), Vec::new());
    let mut table = output::table(&["node", "file", "known by", "pool in the file", "proven by"]);
    for seen in &seen {
        let review = Review::of(seen, &mut pseudonyms);
        let case = case(&set, seen, &review, &mut pseudonyms)?;
        let shown = |key| case.expected(key).map_or("-".to_owned(), ToString::to_string);
        let name = seen.node.metadata.name.clone().unwrap_or_default();
        table.add_row([name, review.file().to_string(), seen.by.clone(), shown(POOL), shown(PROOF)]);
        files.push(file(directory, &review.file().to_string(), Format::Json, &review)?);
        cases.push(case);
    }
    files.push(file(directory, TEST, Format::Yaml, &Test::of(cases))?);
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    whole_file::place_all(directory, &files, false)?;
    output::print(&format!(
        "{}\n\nwrote {} files into {}. Names, addresses, account numbers and unknown words in them are replaced. Read them before you send them.\n",
        table.trim_fmt(),
        files.len(),
        directory.display()
    ))?;
    Ok(Findings::None)
}

/// A directory with other files could be sent with them.
fn check_empty(directory: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("--record {}", directory.display())),
    };
    if entries.count() > 0 {
        bail!("--record {}: the directory is not empty; name one that is empty or does not exist", directory.display());
    }
    Ok(())
}

/// The presets that a recording is for.
fn presets() -> anyhow::Result<PolicySet> {
    let compiled = compile_inline(&serde_json::to_value(Presets::all())?);
    compiled.map_err(|errors| anyhow!("the presets do not compile: {errors:?}"))
}

/// The case of a node, which expects what the presets make of what is recorded.
fn case(set: &PolicySet, seen: &Seen, review: &Review, pseudonyms: &mut Pseudonyms) -> anyhow::Result<Case> {
    let mut recorded = Case::of(seen, review, pseudonyms);
    let read: api::case::Case = serde_json::from_value(serde_json::to_value(&recorded)?)?;
    let node = serde_json::to_value(review)?["request"]["object"].take();
    let simulated = simulate(set, &scene(set, &read, node)?, &Exemptions::default())?;
    let labels = &simulated.node["metadata"]["labels"];
    // What is redacted is redacted to itself.
    let mut value = |key: &str| -> Option<Redacted> { labels[key].as_str().map(|text| pseudonyms.text(text)) };
    recorded.expect([(POOL, value(POOL)), (PROOF, value(PROOF))]);
    Ok(recorded)
}

/// A file with a document.
fn file(directory: &Path, name: &str, format: Format, document: &impl Serialize) -> anyhow::Result<(PathBuf, String)> {
    let text = output::structured(format, document)?;
    if text.len() > FILE_MAX {
        bail!("{name} would have more than {} KiB; record fewer nodes, by name with --node", FILE_MAX / 1024);
    }
    Ok((directory.join(name), text))
}
