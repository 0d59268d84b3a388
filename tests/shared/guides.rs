//! Documents whose blocks tests follow as they are written.

/// The content of the first block, in any language, with this text. `guide` is the name of its file without `.md`.
pub(crate) fn block(guide: &str, part: &str) -> String {
    block_of(&format!("docs/guides/{guide}.md"), part)
}

/// The same of any document, by its path from the root of the repository.
pub(crate) fn block_of(document: &str, part: &str) -> String {
    let file = format!("{}/{document}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut blocks = text.split("```").skip(1).step_by(2).filter_map(|block| Some(block.split_once('\n')?.1));
    blocks.find(|block| block.contains(part)).unwrap_or_else(|| panic!("{file} has no block with {part:?}")).to_owned()
}
