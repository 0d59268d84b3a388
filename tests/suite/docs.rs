//! The documents: links lead somewhere, and what a reference lists is what the program has.

mod cli_reference;
mod files;
mod pools;
mod recipes;
mod sentences;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodegate_base::metrics::Metrics;

use crate::hostile::errors_of;
use crate::shared::rendered;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const CLI: &str = "docs/reference/cli.md";
/// Flags of other programs that the documents mention by themselves.
const OTHERS_FLAGS: [&str; 21] = [
    "--admission-control-config-file",
    "--balance-similar-node-groups",
    "--build-context",
    "--filters",
    "--max-request-bytes",
    "--metric-labels-allowlist",
    "--no-hooks",
    "--node-labels",
    "--operation",
    "--overwrite",
    "--peering",
    "--pod-selector",
    "--print-dir",
    "--prune",
    "--register-with-taints",
    "--reuse-values",
    "--set-file",
    "--startup-taint",
    "--startup-taint-prefix",
    "--take-ownership",
    "--tracing-config-file",
];

/// Every Markdown file of the repository, by its path from the root.
fn documents() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !["corpus", "dist", "target"].contains(&name.as_str()) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let relative = path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned();
                found.insert(relative, fs::read_to_string(&path).unwrap());
            }
        }
    }
    found
}

/// The lines outside of code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut code = false;
    let outside = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    outside.collect()
}

/// The line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The code spans of a document, and the lines of its shell blocks.
fn code(text: &str) -> Vec<&str> {
    let spans = prose(text).into_iter().flat_map(|line| line.split('`').skip(1).step_by(2));
    let blocks = text.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    spans.chain(blocks.flat_map(str::lines)).collect()
}

/// Where the links of a line lead.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let images = line.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    inline.chain(images).map(str::to_owned).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            let slug: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
            let before = seen.entry(slug.clone()).or_default();
            *before += 1;
            if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
        })
        .collect()
}

/// The path without `.` and `..`; nothing if it leaves the repository.
fn resolved(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// What is wrong with a link in `from`, if anything is.
fn fault(documents: &BTreeMap<String, String>, from: &str, link: &str) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let Some(target) = (if path.is_empty() { Some(from.to_owned()) } else { resolved(from, path) }) else {
        return Some("leaves the repository");
    };
    if !documents.contains_key(&target) && !Path::new(ROOT).join(&target).exists() {
        return Some("leads nowhere");
    }
    let known = documents.get(&target).is_none_or(|text| anchor.is_empty() || anchors(text).contains(anchor));
    (!known).then_some("names a heading that is not there")
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let documents = documents();
    let mut faults = Vec::new();
    let mut links_found = 0;
    for (from, text) in &documents {
        for link in prose(text).into_iter().flat_map(links) {
            links_found += 1;
            faults.extend(fault(&documents, from, &link).map(|fault| format!("{from}: {link} {fault}")));
        }
    }
    assert!(links_found > 40, "only {links_found} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_wrong_link_is_found() {
    let documents = BTreeMap::from([("docs/a.md".to_owned(), "# One heading: `x`\n# Two\n# Two".to_owned())]);
    for link in ["https://example.com/x", "#one-heading-x", "#two-1", "../README.md", "security.md"] {
        assert_eq!(fault(&documents, "docs/a.md", link), None, "{link}");
    }
    for link in ["#three", "nothing.md", "../../README.md"] {
        assert!(fault(&documents, "docs/a.md", link).is_some(), "{link}");
    }
}

#[test]
fn the_cli_reference_is_what_help_prints() {
    rendered::is_committed(CLI, &cli_reference::page());
}

/// Every flag in a text, such as `--policy`.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("--").map(|(at, _)| at);
    starts.filter_map(|at| {
        let before = text[..at].chars().next_back();
        let rest = &text[at + 2..];
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-').unwrap_or(rest.len());
        let apart = before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '-');
        (apart && end > 1 && rest.starts_with(|letter: char| letter.is_ascii_lowercase()))
            .then(|| &text[at..at + 2 + end])
    })
}

#[test]
fn every_flag_that_the_documents_name_exists() {
    let commands = cli_reference::commands();
    let known: BTreeSet<&str> = commands.iter().flat_map(|(_, text)| flags(text)).chain(OTHERS_FLAGS).collect();
    let mut faults = Vec::new();
    for (from, text) in documents().iter().filter(|(from, _)| *from != "CHANGELOG.md") {
        for piece in code(text) {
            let own = piece.starts_with("--") || piece.starts_with("nodegate ") || piece.starts_with("serve ");
            let command = if own { Some(piece) } else { piece.split_once("| nodegate ").map(|(_, rest)| rest) };
            let command = command.map(|command| command.split(" | ").next().unwrap_or_default());
            let unknown = command.into_iter().flat_map(flags).filter(|flag| !known.contains(flag));
            faults.extend(unknown.map(|flag| format!("{from}: {flag} in `{piece}`")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_flags_of_serve_by_task_are_all_that_it_has_besides_those_of_every_command() {
    let [serve, nodegate] = ["serve", ""].map(|command| {
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let help = cli_reference::help(&command);
        flags(&help).map(str::to_owned).collect::<BTreeSet<String>>()
    });
    let text = fs::read_to_string(Path::new(ROOT).join("docs/reference/flags.md")).unwrap();
    let explained: BTreeSet<String> = flags(&text).map(str::to_owned).collect();
    let missing: Vec<&String> = serve.difference(&nodegate).filter(|flag| !explained.contains(*flag)).collect();
    assert!(serve.len() > 30 && missing.is_empty(), "docs/reference/flags.md does not have {missing:?}");
}

/// The names of all metrics, without the suffix that their kind gives them.
fn metrics() -> BTreeSet<String> {
    [Metrics::new().entries(), Metrics::apply_entries()]
        .concat()
        .iter()
        .map(|entry| stem(&entry.name).to_owned())
        .collect()
}

/// Names of packages, which look like a metric's.
const LIBRARIES: [&str; 2] = ["nodegate_cel", "nodegate_controller"];

/// A metric as it is scraped, without what its kind adds to the name.
fn stem(name: &str) -> &str {
    ["_total", "_bucket", "_count", "_sum", "_info"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

#[test]
fn every_metric_that_the_documents_name_exists() {
    let metrics = metrics();
    assert!(metrics.len() > 30, "only {} metrics", metrics.len());
    let mut unknown = Vec::new();
    for (from, text) in documents().iter().filter(|(from, _)| *from != "CHANGELOG.md") {
        let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        let named = words.filter(|word| word.starts_with("nodegate_") && !LIBRARIES.contains(word));
        unknown.extend(named.filter(|name| !metrics.contains(stem(name))).map(|name| format!("{from}: {name}")));
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// Every field of the schema below `spec`, by its own name.
fn fields(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
    match schema {
        serde_json::Value::Object(object) => {
            if let Some(properties) = object.get("properties").and_then(|properties| properties.as_object()) {
                found.extend(properties.keys().cloned());
            }
            object.values().for_each(|below| fields(below, found));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|below| fields(below, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_a_policy_is_documented() {
    let crd = fs::read_to_string(Path::new(ROOT).join("webhook-config/nodepolicies.yaml")).unwrap();
    let crd: serde_json::Value = serde_saphyr::from_str(&crd).unwrap();
    let mut known = BTreeSet::new();
    fields(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], &mut known);
    assert!(known.len() > 50, "{known:?}");
    let reference = fs::read_to_string(Path::new(ROOT).join("docs/reference/policy.md")).unwrap();
    let spans: Vec<&str> = code(&reference);
    let missing: Vec<&String> = known.iter().filter(|field| !spans.contains(&field.as_str())).collect();
    assert!(missing.is_empty(), "docs/reference/policy.md lacks {missing:?}");
}

/// The policies in a document's YAML blocks; a block that begins with `spec` stands for a whole document.
fn policies(text: &str) -> Vec<String> {
    let blocks = text.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks
        .filter_map(|block| match block {
            _ if block.contains("kind: NodePolicy\n") => Some(block.to_owned()),
            _ if block.starts_with("spec:") => {
                Some(format!("apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: p}}\n{block}\n"))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn every_policy_in_the_documents_loads() {
    let mut loaded = 0;
    for (from, text) in documents() {
        for policy in policies(&text) {
            assert_eq!(errors_of(&policy), Vec::<String>::new(), "{from}:\n{policy}");
            loaded += 1;
        }
    }
    assert!(loaded >= 7, "only {loaded} policies were found");
}

/// What the README shows of the node after the write, as a test of its policy.
const BEFORE_AND_AFTER: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: PolicyTest
policies: [policy.yaml]
cases:
  - name: the README's before and after
    node: {name: gpu-7, labels: {hardware.tier: storage}}
    saved: {labels: {team.owner: vision}}
    controller: true
    expect:
      labels: {hardware.tier: gpu, team.owner: vision}
      taints: ["nvidia.com/gpu:NoSchedule", "startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule"]
      deferred: [node-role.kubernetes.io/gpu]
"#;

#[test]
fn the_readmes_before_and_after_match_its_policy() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let diff = readme.split("\n```diff\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap();
    let code = |line: &str| line[1..].split(" #").next().unwrap().trim().to_owned();
    let lines = |sign: char| diff.lines().filter(|line| line.starts_with(sign)).map(code).collect::<Vec<_>>();
    assert_eq!(lines('-'), ["hardware.tier: storage"]);
    let taint = |key: &str| format!("- {{key: {key}, effect: NoSchedule}}");
    let added = [
        "hardware.tier: gpu".to_owned(),
        "team.owner: vision".to_owned(),
        taint("nvidia.com/gpu"),
        taint("startup-taint.cluster-autoscaler.kubernetes.io/nodegate"),
    ];
    assert_eq!(lines('+'), added);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("policy.yaml"), &policies(&readme)[0]).unwrap();
    fs::write(folder.path().join("test.yaml"), BEFORE_AND_AFTER).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("test").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_readme_stays_short() {
    let lines = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap().lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; move something to docs/");
}

#[test]
fn every_path_that_the_architecture_names_exists() {
    let text = fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    assert!(text.lines().count() <= 150, "ARCHITECTURE.md is read in one sitting; decisions go to docs/decisions/");
    let spans = code(&text);
    let files = spans.iter().map(|span| span.split_once(".rs::").map_or(*span, |(file, _)| &span[..file.len() + 3]));
    let named = files.filter(|span| span.ends_with(".rs") || span.ends_with('/'));
    let packages = fs::read_dir(Path::new(ROOT).join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let roots: Vec<_> = packages.chain([ROOT.into(), Path::new(ROOT).join("src")]).collect();
    let missing: Vec<&str> = named.filter(|path| !roots.iter().any(|root| root.join(path).exists())).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names paths that are not there: {missing:?}");
    let symbols = spans.iter().filter_map(|span| span.split_once("::").filter(|(file, _)| file.ends_with(".rs")));
    for (file, symbol) in symbols {
        let texts = roots.iter().filter_map(|root| fs::read_to_string(root.join(file)).ok());
        let defined = |text: String| text.contains(&format!("fn {symbol}("));
        assert!(texts.into_iter().any(defined), "ARCHITECTURE.md names {symbol}, which is not in {file}");
    }
}

#[test]
fn every_decision_is_dated_listed_and_has_its_rejected_alternatives() {
    let documents = documents();
    let index = &documents["docs/decisions/README.md"];
    for (path, text) in &documents {
        let Some(name) = path.strip_prefix("docs/decisions/").filter(|name| *name != "README.md") else { continue };
        let date = text.lines().nth(2).unwrap_or_default();
        assert!(
            name.starts_with("20") && date.starts_with(&name[..10]),
            "{path}: its name and third line begin with the date"
        );
        assert!(text.contains("\n**Rejected**\n\n- "), "{path} names no rejected alternative");
        assert!(index.contains(&format!("({name})")), "{path} is not in docs/decisions/README.md");
    }
}
