//! The files of a first policy, as YAML.

use std::collections::BTreeSet;

use super::{FirstPolicy, FirstRule, RuleGroups};
use crate::api::case::PolicyTest;
use crate::api::policy::{NodePolicy, NodePolicySpec};
use crate::keys::restriction::{is_reconciled_by_kubelet, is_restricted};

/// Maximum length of a line of a comment.
const LINE_MAX: usize = 120;

impl FirstPolicy {
    /// The policy. Its first line names the schema file for editors.
    ///
    /// The preset `baseline` is in it, because that preset is in force only as long as there is no policy.
    ///
    /// # Errors
    /// Returns an error if it cannot be serialized, which is a bug in nodegate.
    pub fn policy_yaml(&self, name: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        let presets = std::iter::once("baseline").chain(self.platforms.iter().map(|platform| platform.preset()));
        let spec = NodePolicySpec {
            presets: presets.map(str::to_owned).collect(),
            rules: self.rules.iter().map(|rule| rule.rule.clone()).collect(),
            ..NodePolicySpec::default()
        };
        let yaml = serde_saphyr::to_string(&NodePolicy::new(name, spec))?;
        let yaml = with_questions(&yaml, &self.rules).replacen("  rules:\n", &(self.protection() + "  rules:\n"), 1);
        Ok(modeline(schema) + &self.introduction() + &yaml + &self.remarks())
    }

    /// How to keep kubelets from the labels of rules, as a comment: nodes of other names may have them from their kubelets, and would
    /// lose them when they join again. Where rules match a label, whoever claims that label gets the others anyway.
    fn protection(&self) -> String {
        let is_chosen = |rule: &FirstRule| rule.groups.as_ref().is_some_and(|groups| groups.key.is_some());
        let keys = |chosen| {
            let rules = self.rules.iter().filter(move |rule| is_chosen(rule) == chosen);
            rules.flat_map(|rule| rule.rule.labels.keys().map(String::as_str)).collect::<BTreeSet<&str>>()
        };
        let may_be_protected = |key: &str| !is_restricted(key) && !is_reconciled_by_kubelet(key);
        let chosen = keys(true);
        let open: Vec<&str> =
            keys(false).into_iter().filter(|key| may_be_protected(key) && !chosen.contains(key)).collect();
        if open.is_empty() {
            return String::new();
        }
        let text = "Kubelets may set these labels themselves, also on nodes that no rule gives them. If none has a reason to, use this:";
        comment("  ", text) + &format!("  # protect: {{keys: [{}]}}\n", open.join(", "))
    }

    /// What the rules match on, and what else they could.
    fn introduction(&self) -> String {
        let nodes = if self.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", self.nodes) };
        let found = format!("What `nodegate init` found on {nodes}.");
        let mut lines = match self.rules.first().and_then(|rule| rule.groups.as_ref()) {
            None => vec![format!("{found} Review the names: a glob such as gpu-* also matches nodes that join later.")],
            Some(RuleGroups { key: None, .. }) => {
                vec![format!("{found} Each rule is for the nodes of pools, which kubelets cannot choose.")]
            }
            Some(_) => {
                vec![format!(
                    "{found} Each rule is for the nodes with these values of a label, also for those that join later."
                )]
            }
        };
        lines.extend(self.platforms.iter().map(|platform| platform.note().to_owned()));
        if self.names_say_nothing {
            let names =
                "The names of most nodes are addresses, or have too little in common to match nodes that join later.";
            lines.push(format!("{names} To choose what the rules match, {}.", self.advice()));
        }
        lines.iter().map(|line| comment("", line)).collect()
    }

    /// What has no rule, and what is odd.
    fn remarks(&self) -> String {
        let mut text = String::new();
        for RuleGroups { key, names, withheld } in &self.withheld {
            let key = key.as_deref().unwrap_or("pool");
            let line = format!(
                "No rule for {key} {}: kubelets may not set what these nodes have ({}), but they choose this label. \
                 If you trust every kubelet not to claim it, use --trust-kubelet; otherwise --by pool.",
                names.join(", "),
                withheld.join(", ")
            );
            text.push_str(&comment("", &line));
        }
        if !self.odd_ones.is_empty() {
            text.push_str("# Odd ones out, which may be mistakes:\n");
            self.odd_ones.iter().for_each(|one| text.push_str(&comment("", &format!("- {one}"))));
        }
        if self.more_odd_ones > 0 {
            text.push_str(&format!("# - and {} more\n", self.more_odd_ones));
        }
        text
    }

    /// What rules can match on, as the end of a sentence.
    pub fn advice(&self) -> String {
        super::choices::advice(&self.choices)
    }

    /// The tests of the policy in the file `policy`. Their first line names the schema file for editors.
    ///
    /// # Errors
    /// Returns an error if they cannot be serialized, which is a bug in nodegate.
    pub fn test_yaml(&self, policy: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        Ok(modeline(schema) + &serde_saphyr::to_string(&PolicyTest::of_file(policy, self.cases.clone()))?)
    }
}

/// The first line of a file, which names the schema for editors.
pub(crate) fn modeline(schema: &str) -> String {
    format!("# yaml-language-server: $schema={schema}\n")
}

/// The policy, with the question of trust before each rule that needs an answer.
fn with_questions(yaml: &str, rules: &[FirstRule]) -> String {
    let mut questions = rules.iter().map(question);
    let lines = yaml.split_inclusive('\n').map(|line| match line.starts_with("  - name: ") {
        true => questions.next().flatten().unwrap_or_default() + line,
        false => line.to_owned(),
    });
    lines.collect()
}

/// Whether somebody trusts kubelets with the labels of this rule, as a comment.
fn question(rule: &FirstRule) -> Option<String> {
    let RuleGroups { key, names: _, withheld } = rule.groups.as_ref()?;
    let asks = format!("Do you trust every kubelet not to claim this value of {}?", key.as_deref()?);
    let text = if rule.rule.trust_kubelet == Some(true) {
        let keys: Vec<&str> = rule.rule.labels.keys().map(String::as_str).filter(|key| is_restricted(key)).collect();
        format!(
            "{asks} Your answer is yes (--trust-kubelet): a machine that claims it gets {}. If it is no, remove trustKubelet and these labels.",
            keys.join(", ")
        )
    } else if withheld.is_empty() {
        return None;
    } else {
        format!(
            "{asks} The answer here is no, so the rule does not give what kubelets may not set: {}. If it is yes, use --trust-kubelet. With --by pool there is nothing to trust.",
            withheld.join(", ")
        )
    };
    Some(comment("  ", &text))
}

/// The text as lines of a comment.
pub(crate) fn comment(indent: &str, text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= LINE_MAX) {
            Some(line) => line.extend([" ", word]),
            None => lines.push(format!("{indent}# {word}")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
