//! Commands that show how it is, and how it was.

pub(super) mod demo;
pub(super) mod explain;
pub(super) mod history;
pub(super) mod probe;
pub(super) mod report;
pub(super) mod top;
