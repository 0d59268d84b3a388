//! What pools remember, in one ConfigMap beside those with saved state.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;

use super::ConfigMaps;
use nodegate_policy::PoolMemory;

/// The name of the ConfigMap, in the namespace of saved state.
pub const POOLS_NAME: &str = "nodegate-pools";
/// The data key of what pools remember.
pub const POOLS_KEY: &str = "pools.json";

/// What the ConfigMap says.
///
/// # Errors
/// Returns a sentence if it cannot be read.
fn content(config_map: &ConfigMap) -> Result<PoolMemory, String> {
    let text = config_map.data.as_ref().and_then(|data| data.get(POOLS_KEY));
    let text = text.ok_or_else(|| format!("it has no {POOLS_KEY:?}"))?;
    // The message of the parser could repeat the text.
    serde_json::from_str(text)
        .map_err(|error| format!("{POOLS_KEY:?} is not what nodegate writes, in line {}", error.line()))
}

/// What the ConfigMap says. `None` if it cannot be read, which is logged.
fn read(config_map: &ConfigMap) -> Option<Arc<PoolMemory>> {
    let unreadable = |why: String| {
        tracing::warn!(
            config_map = POOLS_NAME,
            why,
            "what pools remember cannot be read; the leader counts what their nodes have, and writes it again"
        );
    };
    content(config_map).map(Arc::new).map_err(unreadable).ok()
}

impl ConfigMaps {
    /// Takes up what pools remember, if this is the ConfigMap with that. If it cannot be read, what was read before stays in force; the
    /// leader writes it again.
    pub(super) fn take_up_pools(&self, config_map: &ConfigMap) -> bool {
        let is_meant = config_map.name_any() == POOLS_NAME;
        if is_meant {
            match read(config_map) {
                Some(read) => self.states.remember_pools(read),
                None => self.states.pools_are_gone(),
            }
        }
        is_meant
    }

    /// Reads what pools remember, which a watch may show later; what is known if that is stored nowhere.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn read_pools(&self) -> Result<Arc<PoolMemory>, kube::Error> {
        let stored = self.api.get_opt(POOLS_NAME).await?;
        Ok(stored.as_ref().and_then(read).unwrap_or_else(|| self.states.pools()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_config_map_that_others_have_written_says_what_is_wrong_and_not_what_it_says() {
        let of = |data: serde_json::Value| content(&serde_json::from_value(json!({"data": data})).unwrap());
        let written =
            of(json!({"pools.json": r#"{"pools": {"gpu": {"labels": {"team": "ml"}}}, "newer": 1}"#})).unwrap();
        assert_eq!(written.pools["gpu"].labels["team"], "ml");
        assert_eq!(of(json!({"other": "{}"})).unwrap_err(), r#"it has no "pools.json""#);
        let secret = of(json!({"pools.json": "{\n\"pools\": \"hunter2\"}"})).unwrap_err();
        assert_eq!(secret, r#""pools.json" is not what nodegate writes, in line 2"#);
        assert!(content(&ConfigMap::default()).is_err());
    }
}
