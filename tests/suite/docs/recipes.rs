//! The recipes of `docs/recipes`, and pages like them: a reader who follows a page gets what it shows, and does not get it without the
//! page's policy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pools::{is_like, words};
use super::{ROOT, anchors, documents};

/// A recipe is short: so many lines below `spec`, comments not counted.
const LINES_OF_SPEC: usize = 12;

/// Other pages that are written like recipes.
const LIKE_RECIPES: [&str; 5] =
    ["from-kyverno", "from-label-scripts", "from-nfd", "from-node-pool-labels", "from-node-ready-controllers"];

/// A page.
struct Recipe {
    page: String,
    title: String,
    /// The YAML blocks that begin with a comment of their file's name, by that name.
    files: Vec<(String, String)>,
    /// The shell blocks, each with the text block after it.
    steps: Vec<(String, String)>,
}

impl Recipe {
    fn read(page: String, text: &str) -> Self {
        let mut blocks = text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).peekable();
        let (mut files, mut steps) = (Vec::new(), Vec::new());
        while let Some((language, block)) = blocks.next() {
            match language {
                "yaml" => {
                    let name = block.lines().next().and_then(|line| line.strip_prefix("# "));
                    let name =
                        name.unwrap_or_else(|| panic!("{page}: the first line of a YAML block is `# FILE`:\n{block}"));
                    files.push((name.to_owned(), format!("{block}\n")));
                }
                "sh" => {
                    let shown = blocks.next_if(|(language, _)| *language == "text").map(|(_, shown)| shown);
                    let shown = shown.unwrap_or_else(|| panic!("{page}: what does this print?\n{block}"));
                    steps.push((block.to_owned(), shown.to_owned()));
                }
                other => panic!("{page}: a block is yaml, or sh with text after it, but not {other:?}"),
            }
        }
        let title = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default().to_owned();
        Self { page, title, files, steps }
    }

    fn policy(&self) -> &str {
        let policy = self.files.iter().find(|(name, _)| name == "policy.yaml");
        &policy.unwrap_or_else(|| panic!("{} has no policy.yaml", self.page)).1
    }

    /// What each step prints, in a folder with the files of the page and this policy.
    fn follow(&self, policy: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in &self.files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, if name == "policy.yaml" { policy } else { text }).unwrap();
        }
        let program = PathBuf::from(env!("CARGO_BIN_EXE_nodegate"));
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let run = |(script, _): &(String, String)| {
            let mut shell = Command::new("bash");
            shell.args(["-euo", "pipefail", "-c", script]).current_dir(folder.path()).env("PATH", &path);
            let output = shell.env_remove("KUBECONFIG").env("COLUMNS", "100").output().unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
        };
        self.steps.iter().map(run).collect()
    }

    /// Which step prints something else than the page shows, if any does.
    fn fault(&self, policy: &str) -> Option<String> {
        let steps = self.steps.iter().zip(self.follow(policy));
        let mut faults = steps.filter(|((_, shown), printed)| !is_like(&words(printed), &words(shown)));
        let ((script, shown), printed) = faults.next()?;
        Some(format!("{}: {script}\nprints\n{printed}\nand the page shows\n{shown}", self.page))
    }
}

fn recipes() -> Vec<Recipe> {
    let pages =
        documents().into_iter().filter(|(page, _)| page.starts_with("docs/recipes/") && !page.ends_with("README.md"));
    pages.map(|(page, text)| Recipe::read(page, &text)).collect()
}

fn others() -> impl Iterator<Item = Recipe> {
    LIKE_RECIPES.into_iter().map(|name| {
        let page = format!("docs/migrating/{name}.md");
        let text = fs::read_to_string(Path::new(ROOT).join(&page)).unwrap();
        Recipe::read(page, &text)
    })
}

/// The policy's head, without all that it says.
fn without_content(policy: &str) -> String {
    let (head, _) = policy.split_once("\nspec:\n").expect("a policy has a spec");
    format!("{head}\nspec: {{presets: [baseline-audit]}}\n")
}

#[test]
fn a_reader_of_a_recipe_gets_what_it_shows_and_only_with_its_policy() {
    let recipes: Vec<Recipe> = recipes().into_iter().chain(others()).collect();
    assert!(recipes.len() >= 23, "{} recipes", recipes.len());
    let mut faults: Vec<String> = recipes.iter().filter_map(|recipe| recipe.fault(recipe.policy())).collect();
    for recipe in &recipes {
        if recipe.fault(&without_content(recipe.policy())).is_none() {
            faults.push(format!("{}: a policy without rules gives the same, so nothing is proven", recipe.page));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn a_recipe_has_a_short_policy_and_is_listed_by_its_title() {
    let index = fs::read_to_string(Path::new(ROOT).join("docs/recipes/README.md")).unwrap();
    for recipe in recipes() {
        let spec = recipe.policy().split_once("\nspec:\n").expect("a policy has a spec").1;
        let lines = spec.lines().filter(|line| !line.trim_start().starts_with('#')).count();
        assert!(lines <= LINES_OF_SPEC, "{}: {lines} lines", recipe.page);
        let file = Path::new(&recipe.page).file_name().unwrap().to_string_lossy();
        let entry = format!("[{}]({file})", recipe.title);
        assert!(index.contains(&entry), "docs/recipes/README.md lacks {entry}");
    }
    assert!(anchors(&index).len() > 2, "the index has no groups");
}
