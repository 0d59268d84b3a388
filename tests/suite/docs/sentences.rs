//! Sentences that native readers stumbled at, and what is like them.

use std::fs;
use std::path::Path;

use super::{ROOT, documents};

/// Parts of such sentences, long enough that nothing else contains them.
const FRAGMENTS: [&str; 28] = [
    "also sets on a new node needs no rule",
    "it is the location of the current machine",
    "as far as they only read",
    "tells nodes without the label from",
    "Who may write a ",
    "neither outcome nor status, and one of",
    "for those who do not",
    "leave both out",
    "The old key counts",
    "that names one of the keys is about both",
    "parts inside each other",
    "map that is written down",
    " behind the ",
    "applies only to what had no effect",
    "the one thing that cannot be made again",
    "Taints came later than pods",
    "is a part of",
    "are of use only to",
    "Who has them can",
    "URL that they are for",
    "Of NodePolicy objects, which are compiled",
    "A ServiceMonitor goes by",
    "The guard protects living nodes",
    "takes the roles over",
    "Only say what that does unless",
    "that counts takes",
    "show which answer",
    ", as far as ",
];

/// What users read: documents, and the chart's values and notes. Decisions are for those who change the program.
fn read_by_users() -> Vec<(String, String)> {
    let chart = ["charts/nodegate/values.yaml", "charts/nodegate/templates/NOTES.txt"];
    let chart = chart.map(|path| (path.to_owned(), fs::read_to_string(Path::new(ROOT).join(path)).unwrap()));
    let documents = documents().into_iter().filter(|(path, _)| !path.starts_with("docs/decisions/"));
    documents.chain(chart).collect()
}

#[test]
fn no_sentence_that_readers_stumbled_at_comes_back() {
    let mut found = Vec::new();
    for (path, text) in read_by_users() {
        // A sentence may go on in the next line, also in a comment.
        let words: Vec<&str> = text.split_whitespace().filter(|word| !["#", ">"].contains(word)).collect();
        let text = words.join(" ");
        found.extend(FRAGMENTS.iter().filter(|part| text.contains(**part)).map(|part| format!("{path}: {part}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// What follows in a text is `after` something, not `behind` it.
#[test]
fn messages_say_after_where_one_text_follows_another() {
    for entry in fs::read_dir(Path::new(ROOT).join("tests/wrong-policies")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(" behind "), "{}", path.display());
    }
}
