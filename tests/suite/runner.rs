//! Guards against a test file that nobody compiles.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_file_in_the_suite_is_a_module_of_it() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite");
    let main = std::fs::read_to_string(suite.join("main.rs")).unwrap();
    let declared: BTreeSet<String> = main
        .lines()
        .filter_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';').map(str::to_owned))
        .collect();
    let present: BTreeSet<String> = std::fs::read_dir(&suite)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().is_some_and(|name| name != "main.rs"))
        .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(present, declared, "files in tests/suite/ (left) and `mod` lines of tests/suite/main.rs (right) differ");
}
