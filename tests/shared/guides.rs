//! The guides of `docs/guides`, whose blocks tests follow as they are written.

/// The content of the first block, in any language, with this text. `guide` is the name of its file without `.md`.
pub(crate) fn block(guide: &str, part: &str) -> String {
    let file = format!("{}/docs/guides/{guide}.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut blocks = text.split("```").skip(1).step_by(2).filter_map(|block| Some(block.split_once('\n')?.1));
    blocks.find(|block| block.contains(part)).unwrap_or_else(|| panic!("{file} has no block with {part:?}")).to_owned()
}
