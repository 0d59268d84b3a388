//! The files of a first policy, as YAML.

use super::FirstPolicy;
use crate::api::case::PolicyTest;
use crate::api::policy::{NodePolicy, NodePolicySpec};

impl FirstPolicy {
    /// The policy. Its first line names the schema file for editors.
    ///
    /// The preset `baseline` is in it, because that preset is in force only as long as there is no policy.
    ///
    /// # Errors
    /// Returns an error if it cannot be serialized, which is a bug in nodegate.
    pub fn policy_yaml(&self, name: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        let spec = NodePolicySpec {
            presets: vec!["baseline".to_owned()],
            rules: self.rules.iter().map(|rule| rule.rule.clone()).collect(),
            ..NodePolicySpec::default()
        };
        let nodes = if self.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", self.nodes) };
        let comment = format!(
            "# What `nodegate init` found on {nodes}. Review the names: a glob such as gpu-* also matches nodes that join later.\n"
        );
        Ok(modeline(schema) + &comment + &serde_saphyr::to_string(&NodePolicy::new(name, spec))?)
    }

    /// The tests of the policy in the file `policy`. Their first line names the schema file for editors.
    ///
    /// # Errors
    /// Returns an error if they cannot be serialized, which is a bug in nodegate.
    pub fn test_yaml(&self, policy: &str, schema: &str) -> Result<String, serde_saphyr::ser::Error> {
        let test = PolicyTest {
            api_version: "nodegate.dev/v1alpha1".to_owned(),
            kind: "PolicyTest".to_owned(),
            policies: vec![policy.to_owned()],
            cases: self.cases.clone(),
            ..PolicyTest::default()
        };
        Ok(modeline(schema) + &serde_saphyr::to_string(&test)?)
    }
}

fn modeline(schema: &str) -> String {
    format!("# yaml-language-server: $schema={schema}\n")
}
