//! The labels of the variable.

use nodegate_policy::api::names::{check_label_key, check_label_value};
use nodegate_policy::restriction::{is_own, is_restricted};

/// A label that a kubelet may register with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    key: String,
    value: String,
}

impl Label {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value, which may be empty.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The label as `--node-labels` takes it.
    pub fn flag(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

/// What the variable says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraLabels {
    /// Labels to add, each key once, in the order of the text.
    pub labels: Vec<Label>,
    /// What is left out, with the reason.
    pub refused: Vec<String>,
}

impl ExtraLabels {
    /// Reads `KEY=VALUE,KEY=,KEY` as a kubelet reads `--node-labels`. Of two labels with one key, the last counts. One that is
    /// refused does not cost the others.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
            match label(key.trim(), value.trim()) {
                Ok(label) => {
                    found.labels.retain(|before| before.key != label.key);
                    found.labels.push(label);
                }
                Err(reason) => found.refused.push(reason),
            }
        }
        found
    }
}

fn label(key: &str, value: &str) -> Result<Label, String> {
    check_label_key(key).map_err(|error| error.to_string())?;
    check_label_value(value).map_err(|error| error.to_string())?;
    if is_restricted(key) {
        return Err(format!(
            "a kubelet may not set the label {key}: the kubelet does not start with it, and the NodeRestriction admission plugin refuses it; let a NodePolicy rule set it instead"
        ));
    }
    if is_own(key) {
        return Err(format!(
            "a kubelet may not set the label {key}: nodegate removes labels of nodegate.dev that a kubelet sends"
        ));
    }
    Ok(Label { key: key.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Vec<String> {
        ExtraLabels::parse(text).labels.iter().map(Label::flag).collect()
    }

    #[test]
    fn labels_are_read_as_a_kubelet_reads_them() {
        for (text, expected) in [
            ("node.kubernetes.io/worker-rwn=", &["node.kubernetes.io/worker-rwn="] as &[&str]),
            ("node.kubernetes.io/worker-rwn", &["node.kubernetes.io/worker-rwn="]),
            (" a = b , c=d,,", &["a=b", "c=d"]),
            ("a=1,b=2,a=3", &["b=2", "a=3"]),
            ("", &[]),
            (" , ", &[]),
        ] {
            let found = ExtraLabels::parse(text);
            assert_eq!(found.refused, [""; 0], "{text}");
            assert_eq!(flags(text), expected, "{text}");
        }
    }

    #[test]
    fn a_label_that_a_kubelet_may_not_set_is_left_out_with_the_reason_and_the_others_stay() {
        for refused in [
            "node-role.kubernetes.io/worker=",
            "node-restriction.kubernetes.io/a=b",
            "x.node-restriction.kubernetes.io/a=b",
            "kubernetes.io/role=x",
            "topology.k8s.io/zone=a",
            "nodegate.dev/pending=1",
            "a=b c",
            "a=%n",
            "a=$HOME",
            "a=b\nExecStart=/bin/sh",
            "a b=c",
            "-=x",
            "=x",
            "a=b=c",
            "a=\u{1b}[2J",
            "--config=/etc/passwd",
            "é=1",
        ] {
            let found = ExtraLabels::parse(&format!("before=1,{refused},after=2"));
            assert_eq!(found.labels.iter().map(Label::flag).collect::<Vec<_>>(), ["before=1", "after=2"], "{refused}");
            assert_eq!(found.refused.len(), 1, "{refused}");
        }
        let said = &ExtraLabels::parse("node-role.kubernetes.io/worker=").refused[0];
        assert!(said.contains("NodeRestriction") && said.contains("NodePolicy rule"), "{said}");
    }
}
