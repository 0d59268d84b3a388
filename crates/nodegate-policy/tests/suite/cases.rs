//! The cases in `tests/cases`, which `nodegate test` runs too, and those of the guides, run without the binary.

use std::fs;
use std::path::{Path, PathBuf};

use nodegate_policy::api::case::PolicyTest;
use nodegate_policy::api::schema::{check, schema_of};
use nodegate_policy::api::source::{FieldPath, Tree, parse_documents};
use nodegate_policy::simulate::{compile_inline, missing_errors, node_of, run_case};

use crate::guides;

/// The differences in one test file, a line each, and the number of its cases.
fn differences(test: &PolicyTest) -> (Vec<String>, usize) {
    let compiled = compile_inline(test.policy.as_ref().expect("policies in the file"));
    if !test.expect_errors.is_empty() {
        let errors: Vec<String> = compiled.err().unwrap_or_default().iter().map(ToString::to_string).collect();
        let missing = missing_errors(test, &errors).into_iter();
        return (missing.map(|text| format!("no error contains {text:?} among {errors:?}")).collect(), 1);
    }
    let set = compiled.unwrap_or_else(|errors| panic!("{errors:?}"));
    let differences = test.cases.iter().flat_map(|case| {
        let node = node_of(case).unwrap().expect("a node in the file");
        let found = run_case(&set, case, node).unwrap();
        found.into_iter().map(|line| format!("{}: {line}", case.name)).collect::<Vec<_>>()
    });
    (differences.collect(), test.cases.len())
}

/// A path from the root of the repository.
pub(crate) fn path_of(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Every policy test in a file.
pub(crate) fn tests_of(path: &Path) -> Vec<PolicyTest> {
    let trees = parse_documents(&fs::read_to_string(path).unwrap()).unwrap();
    let test = |mut tree: Tree| {
        let mut faults = Vec::new();
        check(&mut tree, &schema_of::<PolicyTest>(), &FieldPath::root(), &mut faults);
        assert!(faults.is_empty(), "{}: {faults:?}", path.display());
        serde_json::from_value(tree.to_json()).unwrap()
    };
    trees.into_iter().map(test).collect()
}

/// Every policy test in `tests/cases`, with the name of its file, and those of the guides.
pub(crate) fn tests() -> Vec<(String, PolicyTest)> {
    let mut found = guides::tests();
    for file in fs::read_dir(path_of("tests/cases")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        found.extend(tests_of(&path).into_iter().map(|test| (name.to_owned(), test)));
    }
    found
}

#[test]
fn every_table_case_passes() {
    let (mut found, mut count) = (Vec::new(), 0);
    for (file, test) in tests() {
        let (lines, cases) = differences(&test);
        found.extend(lines.into_iter().map(|line| format!("{file}: {line}")));
        count += cases;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 300, "only {count} cases were found");
}
