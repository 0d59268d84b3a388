//! Saved state from a directory: one `<node>.json` per node, watched, never written.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::SavedStates;
use nodegate_base::watch::{Changes, Watched};
use nodegate_policy::api::state::SavedState;

/// A file that is not a valid saved state, or a directory that cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct StateError {
    /// The file or the directory.
    pub path: PathBuf,
    why: String,
}

/// Called with the number of valid files and the errors of the others.
pub type StateObserver = Arc<dyn Fn(usize, &[StateError]) + Send + Sync>;

/// Reads every `<node>.json`, without the history, which only commands need. For an invalid file, the state of its node in `last` is kept.
///
/// A directory that does not exist counts as empty.
pub fn read(
    directory: &Path,
    last: &HashMap<String, Arc<SavedState>>,
) -> (HashMap<String, Arc<SavedState>>, Vec<StateError>) {
    read_each(directory, last, |state| SavedState { history: Vec::new(), ..state })
}

/// Reads every `<node>.json`, with the history.
///
/// A directory that does not exist counts as empty.
pub fn read_with_history(directory: &Path) -> (HashMap<String, Arc<SavedState>>, Vec<StateError>) {
    read_each(directory, &HashMap::new(), |state| state)
}

fn read_each(
    directory: &Path,
    last: &HashMap<String, Arc<SavedState>>,
    kept: impl Fn(SavedState) -> SavedState,
) -> (HashMap<String, Arc<SavedState>>, Vec<StateError>) {
    let mut states = HashMap::new();
    let mut errors = Vec::new();
    let entries = match fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            errors.push(StateError { path: directory.to_owned(), why: error.to_string() });
            return (last.clone(), errors);
        }
    };
    for path in entries.into_iter().map(|entry| entry.path()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(node) = name.strip_suffix(".json").filter(|node| !node.starts_with('.') && !node.is_empty()) else {
            continue;
        };
        match read_file(&path, node) {
            Ok(state) => {
                let state = kept(state);
                // An unchanged document is not copied.
                let state =
                    last.get(node).filter(|known| ***known == state).cloned().unwrap_or_else(|| Arc::new(state));
                states.insert(node.to_owned(), state);
            }
            Err(why) => {
                states.extend(last.get(node).map(|known| (node.to_owned(), known.clone())));
                let advice = format!("write a state.json document with nodeName {node:?}, or remove it");
                errors.push(StateError { path, why: format!("{why}; {advice}") });
            }
        }
    }
    (states, errors)
}

fn read_file(path: &Path, node: &str) -> Result<SavedState, String> {
    // Who opens a pipe waits until somebody writes to it.
    if !fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("is no file".to_owned());
    }
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let state: SavedState = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if state.node_name == node {
        Ok(state)
    } else {
        Err(format!("it contains the state of node {:?}", state.node_name))
    }
}

/// Updates `states` from the directory until `shutdown`; `last` is their current content.
pub async fn watch(
    directory: PathBuf,
    last: HashMap<String, Arc<SavedState>>,
    states: Arc<SavedStates>,
    poll: Duration,
    observer: StateObserver,
    shutdown: CancellationToken,
) {
    let mut changes = Changes::new(vec![Watched::Entries(directory.clone())], poll);
    let mut reported: Vec<String> = Vec::new();
    let mut known = last;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
        let (place, last) = (directory.clone(), known.clone());
        let Ok((read, errors)) = tokio::task::spawn_blocking(move || read(&place, &last)).await else { continue };
        let faults: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let changed = known != read;
        if changed {
            states.replace(read.values().cloned());
            known = read;
        }
        if changed || faults != reported {
            observer(states.len(), &errors);
        }
        reported = faults;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_keeps_the_last_known_state_and_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write(
            "n1.json",
            r#"{"nodeName": "n1", "labels": {"a": "b"}, "capturedAt": "2026-01-14T17:00:00Z", "future": 1,
                "history": [{"id": 1, "time": "2026-01-14T17:00:00Z", "how": "user", "field": "label", "key": "a", "new": "b"}]}"#,
        );
        write("n2.json", r#"{"nodeName": "other", "labels": {}}"#);
        write("README.md", "x");
        let (states, errors) = read(directory.path(), &HashMap::new());
        let whole = read_with_history(directory.path()).0;
        assert_eq!((states["n1"].history.len(), whole["n1"].history.len()), (0, 1));
        assert_eq!(states["n1"].labels.get("a"), Some("b"));
        assert_eq!((states.len(), errors.len()), (1, 1));
        assert!(errors[0].to_string().contains("n2.json"), "{}", errors[0]);
        write("n1.json", "{\"nodeName\": \"n1\", \"lab");
        let (later, errors) = read(directory.path(), &states);
        assert_eq!((later["n1"].labels.get("a"), errors.len()), (Some("b"), 2));
    }

    #[test]
    fn a_pipe_is_named_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("n1.json");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (_, errors) = read(directory.path(), &HashMap::new());
        let advice = "is no file; write a state.json document with nodeName \"n1\", or remove it";
        assert_eq!(errors[0].to_string(), format!("{}: {advice}", pipe.display()));
    }

    #[test]
    fn a_missing_directory_counts_as_empty() {
        let (states, errors) = read(Path::new("/nonexistent/nodegate"), &HashMap::new());
        assert!(states.is_empty() && errors.is_empty());
    }
}
