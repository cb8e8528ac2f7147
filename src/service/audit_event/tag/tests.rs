use std::collections::HashSet;

use ledge_base::tensor::DataType;
use proptest::prelude::*;

use super::*;

fn key(period: u32, byte: u8) -> TagKey {
    TagKey::new(period, [byte; 32])
}

fn tensor(datatype: DataType, shape: &[usize], data: &'static [u8]) -> Tensor {
    Tensor::new(datatype, shape.to_vec(), Bytes::from_static(data)).unwrap()
}

#[test]
fn no_two_contents_share_a_tag() {
    let key = key(1, 1);
    let of = |tensors: &[(&str, &Tensor)]| key.of_tensors(tensors.iter().copied());
    let one = tensor(DataType::Uint8, &[4], b"\x01\x02\x03\x04");
    let tags = [
        of(&[("a", &one)]),
        of(&[("b", &one)]),
        of(&[("", &one)]),
        of(&[("a", &tensor(DataType::Int8, &[4], b"\x01\x02\x03\x04"))]),
        of(&[("a", &tensor(DataType::Uint32, &[1], b"\x01\x02\x03\x04"))]),
        of(&[("a", &tensor(DataType::Uint8, &[2, 2], b"\x01\x02\x03\x04"))]),
        of(&[("a", &tensor(DataType::Uint8, &[1, 4], b"\x01\x02\x03\x04"))]),
        of(&[("a", &tensor(DataType::Uint8, &[4], b"\x01\x02\x03\x05"))]),
        of(&[("a", &tensor(DataType::Uint8, &[3], b"\x01\x02\x03"))]),
        of(&[("a", &one), ("a", &one)]),
        of(&[("a", &one), ("b", &one)]),
        of(&[("b", &one), ("a", &one)]),
        of(&[]),
        // The same bytes as a photograph and as a text have other tags.
        key.of_photograph(b"\x01\x02\x03\x04"),
        key.of_text("\x01\x02\x03\x04"),
        key.of_photograph(b""),
        key.of_text(""),
    ];
    assert_eq!(tags.iter().collect::<HashSet<_>>().len(), tags.len());
}

#[test]
fn a_content_handed_on_has_the_tag_of_what_it_holds() {
    let key = key(1, 1);
    let one = tensor(DataType::Uint8, &[4], b"\x01\x02\x03\x04");
    let content = TagContent::Tensors(vec![("a".to_owned(), one.clone())]);
    assert_eq!(key.of(&content), key.of_tensors([("a", &one)].into_iter()));
    let photograph = TagContent::Photograph(Bytes::from_static(b"jpeg"));
    assert_eq!(key.of(&photograph), key.of_photograph(b"jpeg"));
    assert_eq!((content.size(), photograph.size()), (4, 4));
}

#[test]
fn a_key_is_never_shown() {
    assert_eq!(format!("{:?}", key(7, 0xab)), "TagKey { period: 7, .. }");
}

#[test]
fn what_is_no_tag_is_refused() {
    let hash = "00112233445566778899aabbccddeeff";
    assert!(format!("1:{hash}").parse::<Tag>().is_ok());
    for wrong in [
        String::new(),
        hash.to_owned(),
        format!(":{hash}"),
        format!("01:{hash}"),
        format!("+1:{hash}"),
        format!("-1:{hash}"),
        format!("4294967296:{hash}"),
        format!("1:{}", &hash[1..]),
        format!("1:{hash}0"),
        format!("1:{}", hash.to_uppercase()),
        format!("1:+{}", &hash[1..]),
        format!("1: {}", &hash[1..]),
        format!("1:{}\u{e9}", &hash[2..]),
    ] {
        assert!(wrong.parse::<Tag>().is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn equal_contents_have_equal_tags_within_a_period_and_others_in_another(text: String, period in 0..u32::MAX) {
        let (here, again, later) = (key(period, 1), key(period, 1), key(period + 1, 2));
        prop_assert_eq!(here.of_text(&text), again.of_text(&text));
        let (one, other) = (here.of_text(&text), later.of_text(&text));
        prop_assert_eq!((one.period(), other.period()), (period, period + 1));
        prop_assert_ne!(one.hash, other.hash);
        // The key decides, not the number.
        prop_assert_ne!(one.hash, key(period, 2).of_text(&text).hash);
    }

    #[test]
    fn a_tag_is_the_same_after_it_was_written_and_read(period: u32, hash: [u8; TAG_BYTES]) {
        let tag = Tag { period, hash };
        prop_assert_eq!(tag.to_string().parse::<Tag>().unwrap(), tag);
        let json = serde_json::to_string(&tag).unwrap();
        prop_assert_eq!(&json, &format!("\"{tag}\""));
        prop_assert_eq!(serde_json::from_str::<Tag>(&json).unwrap(), tag);
    }

    #[test]
    fn what_is_read_is_written_as_it_was(text in "[0-9]{1,11}:[0-9a-f]{32}|.{0,50}") {
        if let Ok(tag) = text.parse::<Tag>() {
            prop_assert_eq!(tag.to_string(), text);
        }
    }
}
