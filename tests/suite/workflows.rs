//! The workflows of `.github`: what neither actionlint nor zizmor checks (`just workflows` runs both). The scripts of `.ci` that they run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The one step that cannot be a recipe, because it installs what runs recipes.
const INSTALLS_JUST: &str = "cargo install --locked --version ";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// Every workflow by its file name.
fn workflows() -> BTreeMap<String, String> {
    let files = fs::read_dir(Path::new(ROOT).join(".github/workflows")).unwrap();
    files
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap()))
        .collect()
}

/// The jobs of a workflow, by name.
fn jobs(workflow: &str) -> BTreeMap<String, Value> {
    let workflow: Value = serde_saphyr::from_str(workflow).unwrap();
    serde_json::from_value(workflow["jobs"].clone()).unwrap()
}

/// The commands of all steps.
fn commands(workflow: &str) -> Vec<String> {
    let steps = jobs(workflow).into_values().flat_map(|job| job["steps"].as_array().unwrap().clone());
    steps.filter_map(|step| Some(step.get("run")?.as_str()?.to_owned())).collect()
}

fn recipes() -> BTreeSet<String> {
    let justfile = read("justfile");
    let heads = justfile.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    heads.filter_map(|line| line.split([' ', ':']).next()).map(str::to_owned).collect()
}

#[test]
fn every_step_is_one_recipe_that_exists() {
    let recipes = recipes();
    let mut found = 0;
    for (file, text) in workflows() {
        for command in commands(&text).iter().filter(|command| !command.starts_with(INSTALLS_JUST)) {
            let recipe = command.strip_prefix("just ").and_then(|rest| rest.split(' ').next());
            assert!(recipe.is_some_and(|recipe| recipes.contains(recipe)), "{file}: {command:?} is not a recipe");
            let one = !command.trim_end().contains(['\n', ';', '|', '&', '`']) && !command.contains("$(");
            assert!(one && !command.contains("${{"), "{file}: {command:?} is more than one recipe");
            found += 1;
        }
    }
    assert!(found >= 10, "only {found} recipes were found");
}

#[test]
fn arguments_of_workflows_are_handed_on_and_not_read_by_a_shell() {
    let justfile = read("justfile");
    assert!(justfile.contains("\nset positional-arguments\n"));
    let mut found = BTreeSet::new();
    for command in workflows().values().flat_map(|text| commands(text)) {
        let Some((recipe, _)) = command.strip_prefix("just ").and_then(|rest| rest.split_once(' ')) else { continue };
        let body = justfile.split(&format!("\n{recipe} ")).nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
        assert!(body.contains("\"$@\"") && !body.contains("{{"), "{recipe} of the justfile splices its arguments");
        found.insert(recipe.to_owned());
    }
    assert!(found.contains("release") && found.contains("full"), "{found:?}");
}

#[test]
fn every_job_that_runs_recipes_installs_the_version_of_just_that_ci_pins() {
    let programs = read(".ci/programs.bash");
    let pinned = programs.split("just=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    for (file, text) in workflows() {
        let installed = commands(&text).into_iter().filter(|command| command.starts_with(INSTALLS_JUST));
        let installed: Vec<String> = installed.collect();
        let jobs = jobs(&text).into_values();
        let runs = |job: &Value| job["steps"].as_array().unwrap().iter().any(|step| step.get("run").is_some());
        assert_eq!(installed.len(), jobs.filter(runs).count(), "{file}");
        for command in installed {
            assert_eq!(command, format!("{INSTALLS_JUST}{pinned} just"), "{file}");
        }
    }
}

#[test]
fn actions_and_images_are_pinned_by_digest_with_the_version_beside_it() {
    let mut found = 0;
    for (file, text) in workflows() {
        for line in text.lines() {
            let line = line.trim_start().trim_start_matches("- ");
            if let Some(action) = line.strip_prefix("uses: ") {
                let (name, rest) = action.split_once('@').unwrap_or_else(|| panic!("{file}: {action}"));
                let (commit, version) =
                    rest.split_once(" # v").unwrap_or_else(|| panic!("{file}: {name} has no version"));
                assert!(commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{file}: {name}");
                assert_eq!(version.split('.').count(), 3, "{file}: {name} names no whole version");
                found += 1;
            }
            if let Some(image) = line.strip_prefix("image: ") {
                assert!(image.split_once("@sha256:").is_some_and(|(_, digest)| digest.len() == 64), "{file}: {image}");
            }
        }
    }
    assert!(found >= 10, "only {found} actions were found");
}

#[test]
fn the_token_of_a_workflow_is_for_no_other_registry_than_that_of_github() {
    let text = &workflows()["release.yaml"];
    let tokens: Vec<&str> = text.lines().filter(|line| line.contains("github.token")).map(str::trim).collect();
    let pushes = "REGISTRY_TOKEN: ${{ secrets.REGISTRY_TOKEN || vars.REGISTRY == 'ghcr.io' && github.token || '' }}";
    assert_eq!(tokens, [pushes, "GH_TOKEN: ${{ github.token }}"]);
}

#[test]
fn one_action_has_one_version_in_all_workflows() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for text in workflows().values() {
        for (name, version) in text.lines().filter_map(|line| line.split_once("uses: ")?.1.split_once('@')) {
            versions.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    }
    for (name, versions) in versions {
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
}

#[test]
fn jobs_have_the_rights_that_they_name_and_only_publishing_may_write() {
    for (file, text) in workflows() {
        let workflow: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(workflow["permissions"], serde_json::json!({}), "{file}: a job gets rights that it does not name");
        for (name, job) in jobs(&text) {
            let rights = job["permissions"].as_object().unwrap_or_else(|| panic!("{file}: {name} names no rights"));
            let writes = rights.values().any(|right| right != "read");
            assert_eq!(writes, (file.as_str(), name.as_str()) == ("release.yaml", "publish"), "{file}: {name}");
            assert!(job["timeout-minutes"].is_u64(), "{file}: {name} has no timeout");
        }
    }
}

#[test]
fn the_release_is_built_for_every_target_that_the_scripts_know() {
    let settings = read("release/settings.bash");
    let known = settings.split("targets=(").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let known: BTreeSet<&str> = known.split_whitespace().collect();
    assert_eq!(known.len(), 4, "{known:?}");
    let jobs = jobs(&workflows()["release.yaml"]);
    let targets = jobs.values().filter_map(|job| job["strategy"]["matrix"]["target"].as_array());
    let built: BTreeSet<&str> = targets.flatten().map(|target| target.as_str().unwrap()).collect();
    assert_eq!(built, known);
}

#[test]
fn in_containers_git_reads_the_work_tree_although_it_belongs_to_another_user() {
    let mut found = 0;
    for (file, text) in workflows() {
        for (name, job) in jobs(&text).iter().filter(|(_, job)| job.get("container").is_some()) {
            let setting = ["COUNT", "KEY_0", "VALUE_0"].map(|field| &job["env"][format!("GIT_CONFIG_{field}")]);
            assert_eq!(setting, ["1", "safe.directory", "*"], "{file}: {name}");
            found += 1;
        }
    }
    assert!(found >= 3, "only {found} jobs with containers were found");
}

/// An exclusion with `!` does not work below a directory that is cached: actions/toolkit#713.
#[test]
fn a_cache_is_renewed_with_what_the_gate_compiles_for_and_excludes_nothing() {
    let mut found = 0;
    for (file, text) in workflows() {
        for (name, job) in jobs(&text) {
            let steps = job["steps"].as_array().unwrap();
            let uses_cache =
                |step: &&Value| step["uses"].as_str().is_some_and(|action| action.starts_with("actions/cache@"));
            let Some(cache) = steps.iter().find(uses_cache) else { continue };
            assert!(!cache["with"]["path"].as_str().unwrap().contains('!'), "{file}: {name}");
            let is_gate = |step: &Value| step["run"].as_str().is_some_and(|command| command.starts_with("just ci "));
            if steps.iter().any(is_gate) {
                let key = cache["with"]["key"].as_str().unwrap();
                assert!(key.contains("'Cargo.lock'") && key.contains("'rust-toolchain.toml'"), "{file}: {name}: {key}");
                found += 1;
            }
        }
    }
    assert!(found >= 2, "only {found} jobs keep what the gate compiles");
}

#[test]
fn the_full_run_of_every_night_has_all_its_parts() {
    let script = read(".ci/full");
    let lists = script.lines().filter_map(|line| line.strip_prefix("readonly ")?.split_once("=("));
    let parts: Vec<&str> = lists.map(|(name, _)| name).filter(|name| *name != "all").collect();
    assert!(parts.len() > 1, "{parts:?}");
    let jobs = jobs(&workflows()["full.yaml"]);
    assert_eq!(jobs["full"]["strategy"]["matrix"]["part"], serde_json::json!(parts));
}

#[test]
fn a_section_that_is_left_out_stands_below_the_table() {
    let script = "set -eu; source .ci/sections.bash; tried() { not_run 'this needs root'; }; choose_sections tried --; run_sections stops tried";
    let output = Command::new("bash").current_dir(ROOT).args(["-c", script]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (sections, table) = said.split_once("==> Result").unwrap();
    assert!(sections.contains("\nnot run: this needs root\n"), "{said}");
    assert!(table.contains(" passed\ntried: not run: this needs root\n"), "{said}");
}

/// In a repository of its own, with programs (GNU's, too) that only say what the real ones would.
#[cfg(target_os = "linux")]
#[test]
fn tests_that_crash_count_as_failed_when_they_are_run_again_and_again() {
    let at = tempfile::tempdir().unwrap();
    let script = r#"
        set -eu
        mkdir -p .ci bin cache/just-x/bin cache/cargo-nextest-x/bin
        cp "$ROOT"/.ci/* .ci
        sed -i -E 's/(just|cargo_nextest)=[0-9.]*/\1=x/' .ci/programs.bash
        printf '#!/bin/sh\necho /nowhere\n' | tee bin/just cache/just-x/bin/just > cache/cargo-nextest-x/bin/cargo-nextest
        printf '#!/bin/sh\n[ "$1" != test ] || exit 101\necho "     Summary"\n' > bin/cargo
        chmod 755 bin/* cache/*/bin/*
        git init --quiet . && git -c user.name=x -c user.email=x commit --quiet --allow-empty --message x
        PATH=$PWD/bin:$PATH NODEGATE_CACHE=$PWD/cache NODEGATE_FAKETIME=/nowhere .ci/steady 1
    "#;
    let mut steady = Command::new("bash");
    let output = steady.current_dir(at.path()).env("ROOT", ROOT).args(["-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("failed (run_tests)") && output.status.code() == Some(1), "{output:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_one_run_of_the_gate_compiles_into_no_other_run_deletes() {
    let cache = tempfile::tempdir().unwrap();
    for directory in ["target-taken", "target-left"] {
        fs::create_dir(cache.path().join(directory)).unwrap();
    }
    let script = r#"
        set -eu
        source <(sed -n '/^use_compiled_dependencies() {/,/^}/p' "$ROOT/.ci/run")
        cargo() { :; }
        package_flags() { :; }
        exec 7>"$cache/target-taken.lock"
        flock 7
        cd "$cache"
        ln -s "$ROOT/Cargo.lock" .
        use_compiled_dependencies
    "#;
    let mut run = Command::new("bash");
    run.current_dir(ROOT).env_remove("CARGO_TARGET_DIR").env("ROOT", ROOT).env("cache", cache.path());
    let output = run.args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let is_there = ["target-taken", "target-left"].map(|directory| cache.path().join(directory).is_dir());
    assert_eq!(is_there, [true, false], "{output:?}");
}
