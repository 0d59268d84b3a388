use super::*;

fn shard(nodes: usize, value: impl Fn(usize) -> String) -> Shard {
    let id: Arc<str> = "fleet/cmdb".into();
    let labels = |number| {
        let entries = BTreeMap::from([("rack.example.com/row".to_owned(), value(number))]);
        Some(Arc::new(InventoryLabels::checked(entries).0))
    };
    let node =
        |number| (format!("node-{number}").into(), Arc::new(InventoryAnswers::default().with(&id, labels(number))));
    (0..nodes).map(node).collect()
}

fn all_bytes(shard: &Shard) -> Vec<u8> {
    bytes(shard, |_| true, COMPRESSED_MAX).unwrap().0
}

fn config_map(bytes: Vec<u8>) -> ConfigMap {
    ConfigMap { binary_data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(bytes))])), ..ConfigMap::default() }
}

#[test]
fn a_shard_is_read_as_it_was_written_and_written_in_one_way() {
    let written = shard(500, |number| format!("row-{number}"));
    let (stored, left_out) = bytes(&written, |_| true, COMPRESSED_MAX).unwrap();
    assert_eq!(left_out, 0);
    assert_eq!(content(&config_map(stored.clone())).unwrap(), written);
    assert_eq!(all_bytes(&content(&config_map(stored.clone())).unwrap()), stored);
}

#[test]
fn as_many_nodes_as_fit_are_stored_and_those_that_exist_come_first() {
    // Values that do not compress well.
    let value = |number: usize| format!("v{:x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let whole = shard(400, value);
    let lives = |node: &str| node.ends_with('7');
    let most = all_bytes(&whole).len() / 2;
    let (stored, left_out) = bytes(&whole, lives, most).unwrap();
    let read = content(&config_map(stored.clone())).unwrap();
    assert!(stored.len() <= most && read.len() + left_out == 400, "{} bytes, {left_out} left out", stored.len());
    assert!((100..300).contains(&left_out), "about a half fits: {left_out} left out");
    assert_eq!(read.keys().filter(|node| lives(node)).count(), 40);
    assert!(read.iter().all(|(node, answers)| whole[node] == *answers));
    assert_eq!(bytes(&whole, lives, 0).unwrap().1, 400);
}

/// Whoever has nodegate's token can write these, and every replica reads them.
#[test]
fn answers_that_would_fill_the_memory_are_not_unpacked() {
    let refused = |text: String| content(&config_map(gzip(&text))).unwrap_err();
    let padded = format!("{{{}}}", " ".repeat(TEXT_MAX));
    assert!(refused(padded).contains("more than 4 MiB"));
    let names: Vec<String> = (0..=TEXTS_MAX).map(|at| format!("\"{at:x}\":{{}}")).collect();
    let many = format!("{{{}}}", names.join(","));
    assert!(many.len() < TEXT_MAX && refused(many).contains("100000 texts"));
    // What the leader writes is never too much for the replicas.
    let stored = bytes(&shard(50_000, |_| "a".to_owned()), |_| true, COMPRESSED_MAX).unwrap();
    assert_eq!(content(&config_map(stored.0)).unwrap().len() + stored.1, 50_000);
    assert!((1..40_000).contains(&stored.1), "{} nodes left out", stored.1);
}

#[test]
fn unreadable_answers_are_reported_and_replace_no_good_ones() {
    let (cache, metrics) = (InventoryCache::default(), InventoryMetrics::default());
    let mut follower = Follower { cache: &cache, metrics: &metrics, unreadable: HashSet::new() };
    let good = all_bytes(&shard(2, |_| "a".to_owned()));
    follower.take(0, &config_map(good.clone()));
    let cut = good[..good.len() - 20].to_vec();
    for bad in [ConfigMap::default(), config_map(b"no".to_vec()), config_map(cut), config_map(gzip("[secret"))] {
        let why = content(&bad).unwrap_err();
        assert!(why.contains(KEY) && !why.contains("secret"), "{why}");
        follower.take(0, &bad);
        assert_eq!((cache.shard(0).len(), follower.unreadable.len()), (2, 1));
    }
    follower.take(0, &config_map(good));
    assert!(follower.unreadable.is_empty());
    follower.is_gone(0);
    assert!(cache.shard(0).is_empty());
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn invalid_labels_are_left_out() {
    let text = r#"{"n": {"p/i": {"a b": "c", "nodegate.dev/x": "y", "ok": "yes"}}}"#;
    let read = content(&config_map(gzip(text))).unwrap();
    let answer = read["n"].of("p/i").unwrap();
    assert_eq!((answer.iter().collect::<Vec<_>>(), answer.question()), (vec![("ok", "yes")], None));
}

#[test]
fn the_question_of_an_answer_is_stored_with_it() {
    let id: Arc<str> = "fleet/cmdb".into();
    let question = InventoryQuestion::parse("00ab12cd34ef5678");
    let answer = InventoryLabels::checked(BTreeMap::from([("rack".to_owned(), "7".to_owned())])).0.to(question);
    assert!(question.is_some());
    let answers = InventoryAnswers::default().with(&id, Some(Arc::new(answer)));
    let written = Shard::from([("n1".into(), Arc::new(answers))]);
    assert_eq!(content(&config_map(all_bytes(&written))), Ok(written));
}

#[test]
fn a_name_is_that_of_a_shard_or_of_nothing() {
    let named = |name: &str| {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        shard_of(&ConfigMap { metadata, ..ConfigMap::default() })
    };
    assert_eq!(named("nodegate-inventory-07"), Some(7));
    for name in ["nodegate-inventory-7", "nodegate-inventory-99", "nodegate-inventory-", "nodegate-in-force"] {
        assert_eq!(named(name), None, "{name}");
    }
}
