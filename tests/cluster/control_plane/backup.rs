//! Backups of etcd, and a control plane that goes back to one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::Request;
use serde_json::Value;

use super::{ControlPlane, assets, run};

/// All that etcd had, as `etcdctl snapshot save` writes it.
pub(crate) struct Backup(tempfile::NamedTempFile);

impl ControlPlane {
    /// Makes a backup of etcd.
    pub(crate) async fn back_up(&self) -> Backup {
        let request = Request::post("/v3/maintenance/snapshot").body(b"{}".to_vec()).unwrap();
        let parts = self.servers().await.unwrap().etcd.request_text(request).await.unwrap();
        let backup = tempfile::NamedTempFile::new_in(&self.directory).unwrap();
        let blob =
            |part: &str| serde_json::from_str::<Value>(part).unwrap()["result"]["blob"].as_str().map(str::to_owned);
        let blobs = parts.lines().filter_map(blob).map(|blob| BASE64_STANDARD.decode(blob).unwrap());
        fs::write(backup.path(), blobs.collect::<Vec<_>>().concat()).unwrap();
        Backup(backup)
    }

    /// Stops the API server and etcd, has etcd begin anew with a backup, and starts both again. Revisions go on far beyond those
    /// that anybody knows, and all former ones count as compacted, so that every watch begins anew: etcd's documentation on
    /// disaster recovery, "Restoring with revision bump".
    pub(crate) fn restore(&self, backup: &Backup) {
        let ended = self.stop_api_server();
        let etcd = self.process("etcd").to_string();
        self.signal("etcd", "-KILL");
        let lives = || Command::new("kill").args(["-0", &etcd]).stderr(Stdio::null()).status().unwrap().success();
        while lives() {
            thread::sleep(Duration::from_millis(20));
        }
        let [data, restored, before] = ["etcd", "etcd.restored", "etcd.before"].map(|name| self.directory.join(name));
        let arguments = fs::read_to_string(self.directory.join("etcd.arguments")).unwrap();
        let is_kept = |argument: &&str| argument.starts_with("--initial-");
        let mut etcdutl = Command::new(assets().join("etcdutl"));
        etcdutl.args(["snapshot", "restore", "--bump-revision=1000000000", "--mark-compacted", "--data-dir"]);
        etcdutl.arg(&restored).args(arguments.lines().filter(is_kept)).arg(backup.0.path());
        run(&mut etcdutl, None).unwrap();
        let rename = |from: &Path, to: &Path| fs::rename(from, to).unwrap();
        rename(&data, &before);
        rename(&restored, &data);
        fs::remove_dir_all(before).unwrap();
        self.start_api_server();
        self.wait_for_another(ended);
    }
}
