//! What the project says of itself to programs and reviewers: fields that the schema demands, files and recipes that are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const INSIGHTS: &str = "SECURITY-INSIGHTS.yml";
/// Pages that name files and recipes as evidence.
const PAGES: [&str; 4] =
    ["docs/best-practices.md", "docs/self-assessment.md", "docs/verify-a-release.md", "ROADMAP.md"];
/// Fields of each object of the Security Insights specification 2.1 (its `schema.cue`) that this project uses; `?` marks those that
/// may be absent, `[]` an object that is listed.
const SCHEMA: [(&str, &str); 16] = [
    ("", "header project? repository?"),
    ("header", "schema-version last-updated last-reviewed url comment? project-si-source?"),
    (
        "project",
        "name homepage? roadmap? funding? steward? administrators repositories vulnerability-reporting documentation?",
    ),
    ("project.administrators[]", "name primary affiliation? email? social?"),
    (
        "project.documentation",
        "detailed-guide? code-of-conduct? quickstart-guide? release-process? support-policy? signature-verification?",
    ),
    ("project.repositories[]", "name comment url"),
    (
        "project.vulnerability-reporting",
        "reports-accepted bug-bounty-available bug-bounty-program? contact? comment? security-policy? pgp-key? in-scope? out-of-scope?",
    ),
    (
        "repository",
        "status url accepts-change-request accepts-automated-change-request bug-fixes-only? no-third-party-packages? core-team license \
         security documentation? release?",
    ),
    ("repository.core-team[]", "name primary affiliation? email? social?"),
    ("repository.license", "url expression"),
    (
        "repository.documentation",
        "contributing-guide? dependency-management-policy? governance? review-policy? security-policy?",
    ),
    ("repository.release", "automated-pipeline distribution-points changelog? license? attestations?"),
    ("repository.release.attestations[]", "name location predicate-uri comment?"),
    ("repository.security", "assessments champions? tools?"),
    ("repository.security.assessments.self", "comment name? evidence? date?"),
    ("repository.security.tools[]", "name type version? comment? rulesets integration results"),
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// The objects at a path of the schema.
fn at<'a>(document: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![document];
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let values = found.into_iter().map(|value| &value[name]);
        found = values
            .flat_map(|value| if is_list { value.as_array().unwrap().iter().collect() } else { vec![value] })
            .collect();
    }
    found
}

#[test]
fn the_security_insights_have_the_fields_of_their_schema_and_no_others() {
    let insights: Value = serde_saphyr::from_str(&read(INSIGHTS)).unwrap();
    for (path, fields) in SCHEMA {
        let objects = at(&insights, path);
        assert!(!objects.is_empty(), "{INSIGHTS}: {path}");
        for object in objects {
            let object = object.as_object().unwrap_or_else(|| panic!("{INSIGHTS}: {path} is no object"));
            let known: BTreeSet<&str> = fields.split(' ').map(|field| field.trim_end_matches('?')).collect();
            let unknown: Vec<&String> = object.keys().filter(|key| !known.contains(key.as_str())).collect();
            assert!(unknown.is_empty(), "{INSIGHTS}: {path}: {unknown:?}");
            let required = fields.split_whitespace().filter(|field| !field.ends_with('?'));
            let absent: Vec<&str> = required.filter(|field| !object.contains_key(*field)).collect();
            assert!(absent.is_empty(), "{INSIGHTS}: {path} lacks {absent:?}");
        }
    }
    let status = insights["repository"]["status"].as_str().unwrap();
    assert!(
        ["active", "concept", "inactive", "moved", "suspended", "unsupported", "abandoned", "WIP"].contains(&status)
    );
    for tool in at(&insights, "repository.security.tools[]") {
        assert!(["fuzzing", "container", "secret", "SCA", "SAST", "other"].contains(&tool["type"].as_str().unwrap()));
        let integration = tool["integration"].as_object().unwrap();
        assert!(
            ["adhoc", "ci", "release"].iter().all(|when| integration[*when].is_boolean()) && integration.len() == 3
        );
    }
    for date in ["/header/last-updated", "/header/last-reviewed", "/repository/security/assessments/self/date"] {
        let date = insights.pointer(date).and_then(Value::as_str).unwrap();
        date.parse::<jiff::civil::Date>().unwrap_or_else(|fault| panic!("{INSIGHTS}: {date}: {fault}"));
    }
}

#[test]
fn the_security_insights_lead_to_files_of_this_repository() {
    let text = read(INSIGHTS);
    let insights: Value = serde_saphyr::from_str(&text).unwrap();
    let repository = insights["repository"]["url"].as_str().unwrap();
    // The team of CODEOWNERS is one of the organization that has the repository.
    let organization = repository.trim_start_matches("https://github.com/").split('/').next().unwrap();
    assert!(read(".github/CODEOWNERS").contains(&format!("@{organization}/")), "{repository}");
    let prefix = format!("{repository}/blob/main/");
    let files = text.split(&prefix).skip(1);
    let files: Vec<&str> = files.map(|rest| rest.split_whitespace().next().unwrap()).collect();
    assert!(files.len() > 10, "{files:?}");
    let absent: Vec<&&str> = files.iter().filter(|file| !Path::new(ROOT).join(file).is_file()).collect();
    assert!(absent.is_empty(), "{INSIGHTS}: {absent:?}");
}

#[test]
fn files_and_recipes_that_reviewers_are_shown_are_there() {
    let justfile = read("justfile");
    let is_recipe =
        |name: &str| justfile.lines().any(|line| line.split([' ', ':']).next() == Some(name) && line.contains(':'));
    let mut shown = 0;
    let mut absent = Vec::new();
    for page in PAGES {
        let text = read(page);
        for code in text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let is_there = match code.strip_prefix("just ") {
                Some(recipe) => is_recipe(recipe.split(' ').next().unwrap()),
                None if ["tests/", "crates/", ".github/"].iter().any(|folder| code.starts_with(folder)) => {
                    Path::new(ROOT).join(code).exists()
                }
                None => continue,
            };
            shown += 1;
            if !is_there {
                absent.push(format!("{page}: {code}"));
            }
        }
    }
    assert!(shown > 20 && absent.is_empty(), "{shown} are shown, and these are not there: {absent:#?}");
}

/// `docs/self-assessment.md` says so.
#[test]
fn every_package_forbids_unsafe_code() {
    let of_crates = fs::read_dir(Path::new(ROOT).join("crates")).unwrap().map(|member| member.unwrap());
    let manifests: Vec<String> = of_crates
        .map(|member| format!("crates/{}/Cargo.toml", member.file_name().to_str().unwrap()))
        .chain(["Cargo.toml".to_owned(), "fuzz/Cargo.toml".to_owned()])
        .collect();
    for manifest in &manifests {
        let text = read(manifest);
        let forbids = ["\n[lints]\nworkspace = true\n", "\n[lints.rust]\nunsafe_code = \"forbid\"\n"];
        assert!(forbids.iter().any(|lints| format!("{text}\n").contains(lints)), "{manifest}");
    }
    assert!(read("Cargo.toml").contains("\n[workspace.lints.rust]\nunsafe_code = \"forbid\"\n"));
}
