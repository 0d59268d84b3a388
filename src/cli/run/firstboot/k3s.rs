//! The configuration file of k3s and RKE2, as far as labels and the data directory are concerned.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::Context as _;
use serde_json::Value;

use nodegate_onnode::firstboot::{Distribution, NodeProgram};

/// A longer file is not a configuration.
const FILE_MAX: u64 = 1 << 20;

/// What the files say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Configuration {
    /// `data-dir`, or the variable for it.
    pub(super) data_dir: Option<String>,
    /// The key that says something about labels.
    pub(super) labels: Option<&'static str>,
}

impl Configuration {
    /// Reads the file and the drop-ins of the program; of a kubelet there is none.
    pub(super) fn read(node: &NodeProgram) -> anyhow::Result<Self> {
        let (variable, data_dir, default) = match node.distribution {
            Distribution::Kubelet => return Ok(Self::default()),
            Distribution::K3s => ("K3S_CONFIG_FILE", "K3S_DATA_DIR", "/etc/rancher/k3s/config.yaml"),
            Distribution::Rke2 => ("RKE2_CONFIG_FILE", "RKE2_DATA_DIR", "/etc/rancher/rke2/config.yaml"),
        };
        // As k3s does (pkg/configfilearg/parser.go): the variable comes before the flag.
        let variable = env::var_os(variable).filter(|file| !file.is_empty()).map(PathBuf::from);
        let named = variable.or_else(|| node.configuration_flag());
        let file = named.unwrap_or_else(|| default.into());
        let mut found = Self::default();
        for file in [vec![file.clone()], drop_ins(&file)?].concat() {
            let read = read_file(&file).and_then(|text| text.map_or(Ok(()), |text| found.add(&text)));
            read.with_context(|| format!("could not read {}", file.display()))?;
        }
        // What the file says becomes a flag, and flags come before variables (pkg/cli/cmds/server.go).
        let of_environment = || env::var(data_dir).ok().filter(|directory| !directory.is_empty());
        found.data_dir = found.data_dir.or_else(of_environment);
        Ok(found)
    }

    fn add(&mut self, text: &str) -> anyhow::Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let document: BTreeMap<String, Value> = serde_saphyr::from_str(text)?;
        for (key, value) in document {
            match (key.trim_end_matches('+'), value) {
                ("data-dir", Value::String(directory)) => self.data_dir = Some(directory),
                ("node-label", _) if self.labels.is_none() => self.labels = Some("node-label"),
                ("kubelet-arg", value) if value.to_string().contains("node-labels") => {
                    self.labels = Some("kubelet-arg");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn drop_ins(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut directory = file.as_os_str().to_owned();
    directory.push(".d");
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("could not read {}", Path::new(&directory).display()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(file: &Path) -> anyhow::Result<Option<String>> {
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => anyhow::ensure!(metadata?.is_file(), "it is not a file"),
    }
    let mut text = String::new();
    let read = fs::File::open(file)?.take(FILE_MAX + 1).read_to_string(&mut text)?;
    anyhow::ensure!(read as u64 <= FILE_MAX, "it is larger than 1 MiB");
    Ok(Some(text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_concerns_labels_and_the_data_directory_is_read() {
        for (text, data_dir, labels) in [
            ("", None, None),
            ("write-kubeconfig-mode: '0644'\ntls-san: [a]", None, None),
            ("data-dir: /d\nnode-label: [a=b]", Some("/d"), Some("node-label")),
            ("node-label+: [a=b]", None, Some("node-label")),
            ("kubelet-arg: [max-pods=5]", None, None),
            ("node-label: a=b\nkubelet-arg+:\n- node-labels=a=b", None, Some("kubelet-arg")),
            ("kubelet-arg: node-labels=a=b", None, Some("kubelet-arg")),
        ] {
            let mut found = Configuration::default();
            found.add(text).unwrap();
            assert_eq!(found, Configuration { data_dir: data_dir.map(str::to_owned), labels }, "{text}");
        }
        assert!(Configuration::default().add("[").is_err());
        assert!(Configuration::default().add("- a").is_err());
    }
}
