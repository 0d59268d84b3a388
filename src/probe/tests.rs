//! See `tests/suite/probe.rs` for whole machines.

use super::*;

#[test]
fn a_root_that_is_no_directory_is_an_error() {
    let names = Names::built_in().unwrap();
    let missing = probe(Path::new("/does/not/exist"), &names).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(probe(file.path(), &names).unwrap_err().kind(), io::ErrorKind::NotADirectory);
}
