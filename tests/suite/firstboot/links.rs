//! What `export firstboot --directory` writes, where others have put links.

use std::fs;

use super::{nodegate, success, text};

#[test]
fn files_are_not_written_through_links() {
    let root = tempfile::tempdir().unwrap();
    let (image, outside) = (root.path().join("image"), root.path().join("outside"));
    fs::create_dir_all(&image).unwrap();
    fs::create_dir_all(&outside).unwrap();
    let arguments =
        ["export", "firstboot", "--labels", "pool=a", "--format", "drop-in", "--directory", image.to_str().unwrap()];
    success(&nodegate(&arguments).output().unwrap());
    // A file that is a link is replaced.
    let written = image.join("etc/systemd/system/kubelet.service.d");
    let file = fs::read_dir(&written).unwrap().next().unwrap().unwrap().path();
    let victim = outside.join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&victim, &file).unwrap();
    success(&nodegate(&arguments).output().unwrap());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    // A folder that is a link is refused.
    fs::remove_dir_all(image.join("etc")).unwrap();
    std::os::unix::fs::symlink(&outside, image.join("etc")).unwrap();
    let refused = nodegate(&arguments).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("is a symbolic link"), "{}", text(&refused.stderr));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}
