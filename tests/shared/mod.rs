//! What the tests with and without a cluster use.
#![allow(dead_code, reason = "neither of them uses everything")]

pub(crate) mod authority;
pub(crate) mod cmdb;
pub(crate) mod collector;
pub(crate) mod commands;
pub(crate) mod eventually;
pub(crate) mod guides;
pub(crate) mod memory;
pub(crate) mod monitoring;
pub(crate) mod output;
pub(crate) mod rendered;
pub(crate) mod required;
pub(crate) mod tools;
