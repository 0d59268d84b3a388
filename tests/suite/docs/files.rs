//! The files that the guides' commands read: a reader must have them.

use std::path::Path;

use super::{ROOT, documents};

/// The files that a line's commands read with `--policy` or `-f`. Words in capitals stand for files of the reader.
fn read_by(line: &str) -> Vec<&str> {
    // `cleanup --policy` takes names of policies.
    if line.contains("cleanup") {
        return Vec::new();
    }
    let words: Vec<&str> = line.split([' ', '`', '|', '"', '\'']).filter(|word| !word.is_empty()).collect();
    let follows = words.windows(2).filter(|pair| ["--policy", "-f"].contains(&pair[0])).map(|pair| pair[1]);
    let is_plain = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || "./_-".contains(letter));
    let is_file = |name: &&str| name.starts_with(char::is_alphanumeric) && name.chars().any(char::is_lowercase);
    let names = follows.map(|name| name.trim_end_matches(['.', ',', ';', ':', ')']));
    names.filter(|name| is_plain(name)).filter(is_file).collect()
}

#[test]
fn every_file_that_a_guide_reads_is_in_the_repository_or_named_before() {
    let mut unknown = Vec::new();
    let mut checked = 0;
    for (document, text) in documents() {
        if document != "README.md" && !document.starts_with("docs/guides/") {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            for file in read_by(line) {
                checked += 1;
                let is_named = || lines[..at].iter().any(|before| before.contains(file));
                if !Path::new(ROOT).join(file).exists() && !is_named() {
                    unknown.push(format!("{document}:{}: {file}", at + 1));
                }
            }
        }
    }
    assert!(checked > 8, "{checked} files");
    assert!(unknown.is_empty(), "a reader does not have these files: {unknown:#?}");
}
