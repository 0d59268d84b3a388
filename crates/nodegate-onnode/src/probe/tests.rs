//! See `tests/suite/probe.rs` for whole machines.

use super::*;
use nodegate_policy::api::names::check_label_value;
use nodegate_policy::gpu::product::short_name;

#[test]
fn a_root_that_is_no_directory_is_an_error() {
    let names = Names::built_in().unwrap();
    let missing = probe(Path::new("/does/not/exist"), &names).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(probe(file.path(), &names).unwrap_err().kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn short_names_of_all_known_gpus_are_label_values() {
    let names = Names::built_in().unwrap();
    let mut short_names = 0;
    for vendor in [0x10de, 0x1002, 0x8086] {
        for device in 0..=u16::MAX {
            let product = names.device(vendor, device).and_then(|name| name.split_once('[')?.1.strip_suffix(']'));
            if let Some(short) = product.and_then(short_name) {
                check_label_value(&short).unwrap();
                assert_eq!(short, short.to_lowercase());
                short_names += 1;
            }
        }
    }
    assert!(short_names > 1500, "{short_names}");
}
