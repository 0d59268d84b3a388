//! Policies, nodes and writes at random. The tests with a cluster include these files as well.

pub(crate) mod demanded;
pub(crate) mod generator;

/// Draws cover every condition but those on GPUs and on pools, which no native policy has.
#[test]
fn the_generator_draws_every_condition_that_can_be_exported() {
    let mut random = generator::Random::new(1);
    let drawn: Vec<serde_json::Value> = (0..500).map(|_| generator::conditions(&mut random, "", true)).collect();
    assert_eq!(crate::properties::not_drawn(&drawn), ["gpu", "pools"]);
}
