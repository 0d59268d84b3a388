//! Guards against a test file that nobody compiles.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_file_of_the_tests_is_a_module() {
    for (binary, root) in [("suite", "main.rs"), ("cluster", "main.rs"), ("shared", "mod.rs")] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(binary);
        let main = std::fs::read_to_string(directory.join(root)).unwrap();
        let module = |line: &str| {
            let line = line.trim();
            Some(line.strip_prefix("pub(crate) ").unwrap_or(line).strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
        };
        // These are elsewhere.
        let declared: BTreeSet<String> =
            main.lines().filter_map(module).filter(|module| !["programs", "shared"].contains(&&**module)).collect();
        let present: BTreeSet<String> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().is_some_and(|name| name != root))
            .filter(|path| path.is_dir() || path.extension().is_some_and(|extension| extension == "rs"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(present, declared, "files in tests/{binary}/ (left) and `mod` lines of its {root} (right) differ");
    }
}
