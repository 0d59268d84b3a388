//! The command line of a kubelet, k3s or RKE2, and labels in it.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::labels::Label;

/// What starts the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// The kubelet itself.
    Kubelet,
    /// `k3s server` or `k3s agent`.
    K3s,
    /// `rke2 server` or `rke2 agent`.
    Rke2,
}

/// Why labels cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// There is no kubelet.
    #[error(
        "the command line starts no kubelet, k3s or rke2 by its name; let a NodePolicy rule set the labels instead"
    )]
    NoKubelet,
    /// k0s, which starts the kubelet with what it is given itself.
    #[error(
        "k0s takes labels for the first registration itself: start it with --labels, or let a NodePolicy rule set the labels instead"
    )]
    K0s,
    /// A flag is the last word.
    #[error("the flag {0} has no value")]
    NoValue(String),
    /// k3s and RKE2 take a list from the command line or from the file.
    #[error(
        "the configuration file has {0}, which a flag would replace or override; add the labels to the file (nodegate export firstboot --format k3s)"
    )]
    InConfiguration(String),
}

/// Where the kubelet's client certificate is after the first registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The directory, from the flags or the default.
    pub directory: PathBuf,
    /// The names of certificates: what one begins and ends with.
    pub names: (&'static str, &'static str),
}

impl Credentials {
    /// Whether a file of this name is the certificate. A key that waits for its certificate is not.
    pub fn is_certificate(&self, name: &OsStr) -> bool {
        name.as_bytes().starts_with(self.names.0.as_bytes()) && name.as_bytes().ends_with(self.names.1.as_bytes())
    }
}

/// The words of a command line, of which some start a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeProgram {
    /// What starts the kubelet.
    pub distribution: Distribution,
    words: Vec<OsString>,
    /// Where flags begin.
    flags_from: usize,
}

/// A flag, its words and its value.
struct Flag {
    name: String,
    words: Range<usize>,
    value: Vec<u8>,
}

impl NodeProgram {
    /// Finds the kubelet in a command line: the first word, or one after a wrapper such as OpenShift's `kubenswrapper`.
    ///
    /// A word that only may be the kubelet is none: a wrapper that gets labels as its own flags does not start, and neither does
    /// the kubelet.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(words: Vec<OsString>) -> Result<Self, Fault> {
        let found = (0..words.len()).find_map(|at| {
            let distribution = if is_program(&words, at) { distribution(&words[at]) } else { None }?;
            let after = match distribution {
                Distribution::Kubelet => at,
                Distribution::K3s | Distribution::Rke2 => subcommand(&words, at)?,
            };
            Some((distribution, after + 1))
        });
        let is_k0s = |at| is_program(&words, at) && Path::new(&words[at]).file_name() == Some(OsStr::new("k0s"));
        let absent = || if (0..words.len()).any(is_k0s) { Fault::K0s } else { Fault::NoKubelet };
        let (distribution, flags_from) = found.ok_or_else(absent)?;
        Ok(Self { distribution, words, flags_from })
    }

    /// Where the client certificate is kept. `data_dir` is that of the configuration file.
    pub fn credentials(&self, data_dir: Option<&str>) -> Credentials {
        let given = |names: &[&str]| {
            let flags = self.flags().into_iter().rev();
            flags
                .into_iter()
                .find(|flag| names.contains(&flag.name.as_str()))
                .map(|flag| OsString::from_vec(flag.value))
        };
        let below = |default: &str| {
            let data = given(&["data-dir", "d"]).or_else(|| data_dir.map(OsString::from));
            let directory = Path::new(&data.unwrap_or_else(|| default.into())).join("agent");
            Credentials { directory, names: ("client-kubelet", ".crt") }
        };
        match self.distribution {
            Distribution::Kubelet => Credentials {
                directory: given(&["cert-dir"]).unwrap_or_else(|| "/var/lib/kubelet/pki".into()).into(),
                names: ("kubelet-client", ".pem"),
            },
            Distribution::K3s => below("/var/lib/rancher/k3s"),
            Distribution::Rke2 => below("/var/lib/rancher/rke2"),
        }
    }

    /// The configuration file of k3s or RKE2 if a flag names it.
    pub fn configuration_flag(&self) -> Option<PathBuf> {
        let flags = self.flags().into_iter().rev();
        let mut named = flags.into_iter().filter(|flag| matches!(flag.name.as_str(), "config" | "c"));
        named.next().map(|flag| OsString::from_vec(flag.value).into())
    }

    /// The command line with these labels. A label that is there already gives way. Nothing else changes. `configured` names what the
    /// configuration file of k3s or RKE2 says about labels.
    ///
    /// # Errors
    /// If a flag for labels has no value, or would replace what the configuration file says.
    pub fn with_labels(&self, labels: &[Label], configured: Option<&str>) -> Result<Vec<OsString>, Fault> {
        if let Some(last) = self.words.last().filter(|_| self.flags_end() == self.words.len()) {
            let name = name_of(last.as_bytes()).filter(|_| !last.as_bytes().contains(&b'='));
            let is_open = self.flags().last().is_none_or(|flag| flag.words.end < self.words.len());
            if let Some(name) = name.filter(|name| is_open && self.takes_labels(name)) {
                return Err(Fault::NoValue(format!("--{name}")));
            }
        }
        match self.distribution {
            Distribution::Kubelet => Ok(self.merged(labels, |flag| flag.name == "node-labels", "--node-labels=", b"")),
            Distribution::K3s | Distribution::Rke2 => self.with_node_label_flags(labels, configured),
        }
    }

    fn takes_labels(&self, name: &str) -> bool {
        match self.distribution {
            Distribution::Kubelet => name == "node-labels",
            Distribution::K3s | Distribution::Rke2 => matches!(name, "node-label" | "kubelet-arg"),
        }
    }

    /// `--kubelet-arg=node-labels=…` overrides `--node-label`, and each of both replaces the list in the configuration file.
    fn with_node_label_flags(&self, labels: &[Label], configured: Option<&str>) -> Result<Vec<OsString>, Fault> {
        let is_kubelet_arg = |flag: &Flag| flag.name == "kubelet-arg" && kubelet_arg_prefix(&flag.value).is_some();
        if self.flags().iter().any(is_kubelet_arg) {
            return Ok(self.merged(labels, is_kubelet_arg, "--kubelet-arg=", b"node-labels="));
        }
        let is_node_label = |flag: &Flag| flag.name == "node-label";
        if let Some(configured) =
            configured.filter(|named| *named != "node-label" || !self.flags().iter().any(is_node_label))
        {
            return Err(Fault::InConfiguration(configured.to_owned()));
        }
        let keys: Vec<&str> = labels.iter().map(Label::key).collect();
        let mut words = self.words.clone();
        for flag in self.flags().into_iter().rev().filter(is_node_label) {
            replace(&mut words, &flag, without(&flag.value, &keys).map(OsString::from_vec));
        }
        let added = labels.iter().map(|label| OsString::from(format!("--node-label={}", label.flag())));
        words.splice(self.flags_from..self.flags_from, added);
        Ok(words)
    }

    /// The labels go into the last flag of these, or into a new one before all other flags. There they cannot become the value of
    /// a flag whose own value is an empty variable.
    fn merged(
        &self,
        labels: &[Label],
        is_label_flag: impl Fn(&Flag) -> bool,
        new: &str,
        prefix: &[u8],
    ) -> Vec<OsString> {
        let keys: Vec<&str> = labels.iter().map(Label::key).collect();
        let extra = labels.iter().map(Label::flag).collect::<Vec<_>>().join(",");
        let mut words = self.words.clone();
        let mut is_last = true;
        for flag in self.flags().into_iter().rev().filter(|flag| is_label_flag(flag)) {
            let start = if prefix.is_empty() { 0 } else { kubelet_arg_prefix(&flag.value).unwrap_or_default() };
            let kept = without(&flag.value[start..], &keys);
            let list = match (kept, is_last) {
                (Some(kept), true) => Some([&kept, b",".as_slice(), extra.as_bytes()].concat()),
                (None, true) => Some(extra.clone().into_bytes()),
                (kept, false) => kept,
            };
            is_last = false;
            replace(&mut words, &flag, list.map(|list| OsString::from_vec([&flag.value[..start], &list].concat())));
        }
        if is_last {
            words.insert(self.flags_from, format!("{new}{extra}").into());
        }
        words
    }

    /// Where flags end: a word `--` says so.
    fn flags_end(&self) -> usize {
        let rest = &self.words[self.flags_from..];
        rest.iter().position(|word| word == "--").map_or(self.words.len(), |at| self.flags_from + at)
    }

    /// Every flag that has a value, in its order.
    fn flags(&self) -> Vec<Flag> {
        let end = self.flags_end();
        let mut found = Vec::new();
        let mut at = self.flags_from;
        while at < end {
            let bytes = self.words[at].as_bytes();
            let assigned = bytes.iter().position(|byte| *byte == b'=');
            let name = name_of(&bytes[..assigned.unwrap_or(bytes.len())]);
            let value = match (name.is_some(), assigned) {
                (true, Some(assigned)) => Some((1, bytes[assigned + 1..].to_vec())),
                (true, None) if at + 1 < end => {
                    // The next word may be a flag of its own: then this one is a switch.
                    let next = self.words[at + 1].as_bytes();
                    let takes = name.as_deref().is_some_and(|name| self.takes_labels(name));
                    (takes || !next.starts_with(b"-")).then(|| (2, next.to_vec()))
                }
                _ => None,
            };
            let length = value.as_ref().map_or(1, |(length, _)| *length);
            if let (Some(name), Some((length, value))) = (name, value) {
                found.push(Flag { name, words: at..at + length, value });
            }
            at += length;
        }
        found
    }
}

fn distribution(word: &OsStr) -> Option<Distribution> {
    match Path::new(word).file_name()?.to_str()? {
        "kubelet" => Some(Distribution::Kubelet),
        "k3s" => Some(Distribution::K3s),
        "rke2" => Some(Distribution::Rke2),
        _ => None,
    }
}

/// Whether a word is a program that is started: the first one, the one after a known wrapper, or the path of a file in a
/// directory of programs. A word after a flag may be the value of that flag.
fn is_program(words: &[OsString], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| &words[before]) else { return true };
    if before.as_bytes().starts_with(b"-") && !before.as_bytes().contains(&b'=') && before != "--" {
        return false;
    }
    let is_wrapper = |name: &OsStr| name == "kubenswrapper" || name == "hyperkube";
    let path = Path::new(&words[at]);
    let holds_programs = |directory: &Path| directory.ends_with("bin") || directory.ends_with("sbin");
    Path::new(before).file_name().is_some_and(is_wrapper)
        || (path.is_absolute() && path.parent().is_some_and(holds_programs))
}

/// Where `server` or `agent` is. The flags before it that take a value are `--data-dir` and those of k3s's log.
fn subcommand(words: &[OsString], program: usize) -> Option<usize> {
    let takes_value = |word: &OsString| {
        name_of(word.as_bytes()).is_some_and(|name| {
            !word.as_bytes().contains(&b'=')
                && matches!(name.as_str(), "data-dir" | "d" | "v" | "vmodule" | "log" | "l")
        })
    };
    (program + 1..words.len())
        .find(|at| (words[*at] == "server" || words[*at] == "agent") && !takes_value(&words[at - 1]))
}

/// The name of a flag without dashes. The kubelet takes `_` for `-`.
fn name_of(word: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(word.split(|byte| *byte == b'=').next()?).ok()?;
    let name = text.strip_prefix("--").or_else(|| text.strip_prefix('-'))?;
    let is_name = !name.is_empty() && !name.starts_with('-');
    is_name.then(|| name.replace('_', "-"))
}

/// The length of `node-labels=` in the value of a `--kubelet-arg`.
fn kubelet_arg_prefix(value: &[u8]) -> Option<usize> {
    let dashes = if value.starts_with(b"--") { 2 } else { 0 };
    let rest = &value[dashes..];
    ["node-labels=", "node-labels+=", "node-labels-="]
        .iter()
        .find(|start| rest.starts_with(start.as_bytes()))
        .map(|start| dashes + start.len())
}

/// The list without labels of these keys; nothing if none stays.
fn without(list: &[u8], keys: &[&str]) -> Option<Vec<u8>> {
    let key_of = |entry: &[u8]| entry.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii().to_vec();
    let stays = |entry: &&[u8]| !keys.iter().any(|key| key_of(entry) == key.as_bytes());
    let kept: Vec<&[u8]> = list.split(|byte| *byte == b',').filter(stays).collect();
    let is_empty = kept.iter().all(|entry| entry.trim_ascii().is_empty());
    (!is_empty).then(|| kept.join(b",".as_slice()))
}

/// Gives a flag this value, in the form in which it is written, or removes it.
fn replace(words: &mut Vec<OsString>, flag: &Flag, value: Option<OsString>) {
    let Some(value) = value else {
        words.drain(flag.words.clone());
        return;
    };
    let last = flag.words.end - 1;
    if flag.words.len() == 2 {
        words[last] = value;
        return;
    }
    let word = words[last].as_bytes();
    let name = word.iter().position(|byte| *byte == b'=').map_or(word, |at| &word[..=at]);
    words[last] = OsString::from_vec([name, value.as_bytes()].concat());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "command_line_tests.rs"]
mod tests;
