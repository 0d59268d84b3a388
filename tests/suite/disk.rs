//! A disk that is full, or becomes read-only, under a server that runs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::authority::ask;
use crate::eventually::{eventually_blocking, holds};
use crate::serve::Serve;

/// Mounts a disk of 64 KiB, in namespaces that need no root, and becomes what follows.
const ON_SMALL_DISK: [&str; 6] = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=64k,mode=700 tmpfs \"$0\" && exec \"$@\"",
];

/// A server whose certificates are on a small disk, and where this process sees that disk.
fn serve() -> (Serve, PathBuf) {
    let starter = [&ON_SMALL_DISK as &[&str], &["DIR/certs"]].concat();
    let serve = Serve::start_by(&starter, &[], &[], |directory| fs::create_dir(directory.join("certs")).unwrap());
    let disk = format!("/proc/{}/root{}", serve.process(), serve.path("certs").display());
    (serve, disk.into())
}

fn fill(disk: &Path) {
    let mut filler = fs::File::create(disk.join("filler")).unwrap();
    let full = (0..100).find_map(|_| filler.write_all(&[0; 4096]).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
}

fn remount(serve: &Serve, how: &str) {
    let mut command = Command::new("nsenter");
    command.args(["--target", &serve.process().to_string(), "--user", "--mount", "mount", "-o"]);
    assert!(command.arg(format!("remount,{how}")).arg(serve.path("certs")).status().unwrap().success());
}

/// The damaged certificate cannot be replaced for this reason; the last good one is served meanwhile, and a new one when `heal` is done.
fn goes_on(serve: &Serve, disk: &Path, reason: &str, heal: impl FnOnce()) {
    let ca = fs::read(disk.join("ca.crt")).unwrap();
    let answers = || ask(&serve.address, &ca, None, "/mutate").unwrap().starts_with("HTTP/1.1 405");
    eventually_blocking(reason, || {
        let lines = serve.lines();
        let mut faults = lines.iter().filter_map(|line| line["error"].as_str());
        holds(faults.any(|fault| fault.contains("tls.key") && fault.contains(reason)), || serve.log())
    });
    assert!(answers() && serve.get("/readyz").starts_with("HTTP/1.1 200"), "{}", serve.log());
    assert!(serve.metric(r#"nodegate_certificate_reloads_total{result="failure"} 0"#).is_none(), "it is counted");
    heal();
    eventually_blocking("a new certificate", || {
        let is_new = fs::read(disk.join("tls.crt")).is_ok_and(|text| text != b"damaged");
        holds(is_new, || serve.log())
    });
    assert!(answers(), "{}", serve.log());
}

#[test]
fn while_the_disk_is_full_or_read_only_the_last_certificate_is_served() {
    let (serve, disk) = serve();
    let damage = || fs::write(disk.join("tls.crt"), "damaged").unwrap();
    fill(&disk);
    damage();
    goes_on(&serve, &disk, "No space left on device", || fs::remove_file(disk.join("filler")).unwrap());

    // It must not have replaced the certificate before the disk is read-only.
    serve.signal("STOP");
    damage();
    remount(&serve, "ro");
    serve.signal("CONT");
    goes_on(&serve, &disk, "Read-only file system", || {
        remount(&serve, "rw");
        // The kernel reports a change of a file, not one of a mount.
        fs::write(disk.join("README"), "").unwrap();
    });
}
