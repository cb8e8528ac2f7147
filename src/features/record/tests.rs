use proptest::prelude::*;

use super::*;
use crate::value::tests::any_value;

prop_compose! {
    fn any_row()(
        entity in prop::collection::vec(any_value(), 0..4),
        event_us in any::<i64>(),
        values in prop::collection::btree_map(any::<u16>().prop_map(FieldId), any_value(), 0..6),
    ) -> Row {
        Row { entity, event_us, values: values.into_iter().collect() }
    }
}

prop_compose! {
    fn any_record()(
        seq in any::<u64>(),
        purge_us in any::<i64>(),
        row in any_row(),
        windows in prop::collection::vec(any::<u8>(), 0..40),
    ) -> Record {
        Record { seq, purge_us, row, windows }
    }
}

fn any_key() -> impl Strategy<Value = IndexKey> {
    any::<[u8; IndexKey::LENGTH]>().prop_map(|bytes| IndexKey::try_from(bytes.as_slice()).unwrap())
}

proptest! {
    #[test]
    fn a_row_comes_back_as_it_was(row in any_row()) {
        prop_assert_eq!(Row::decode(&row.encode()), Ok(row));
    }

    #[test]
    fn a_record_comes_back_as_it_was(record in any_record(), key in any_key()) {
        let bytes = record.encode(&key);
        let header = RecordHeader { seq: record.seq, event_us: record.row.event_us, purge_us: record.purge_us };
        prop_assert_eq!(verify(&key, &bytes), Ok(header));
        prop_assert_eq!(Record::decode(&key, &bytes), Ok(record));
    }

    #[test]
    fn a_row_becomes_the_record_that_has_it_without_being_read(record in any_record(), key in any_key()) {
        let record = Record { windows: Vec::new(), ..record };
        prop_assert_eq!(record.header().with_body(&key, Seal::default(), false, &record.row.encode()), record.encode(&key));
    }

    #[test]
    fn a_changed_byte_of_a_record_is_noticed(record in any_record(), key in any_key(), change in 1..=255_u8) {
        let mut bytes = record.encode(&key);
        for at in 0..bytes.len() {
            bytes[at] ^= change;
            prop_assert_eq!(Record::decode(&key, &bytes), Err(Damaged::Checksum), "byte {}", at);
            bytes[at] ^= change;
        }
    }

    #[test]
    fn a_record_cut_off_or_under_another_key_is_noticed(record in any_record(), key in any_key(), other in any_key()) {
        let bytes = record.encode(&key);
        for end in 0..bytes.len() {
            prop_assert!(Record::decode(&key, &bytes[..end]).is_err(), "{end} bytes");
        }
        if key != other {
            prop_assert_eq!(Record::decode(&other, &bytes), Err(Damaged::Checksum));
        }
    }

    #[test]
    fn a_row_cut_off_or_followed_by_more_is_noticed(row in any_row()) {
        let mut bytes = row.encode();
        for end in 0..bytes.len() {
            prop_assert!(Row::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        bytes.push(0);
        prop_assert_eq!(Row::decode(&bytes), Err(Damaged::Malformed));
    }

    #[test]
    fn any_bytes_are_a_row_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
    }
}

#[test]
fn a_record_of_a_later_version_or_cipher_is_not_taken_for_damage() {
    let row = Row { entity: vec![Value::Int32(1)], event_us: 1, values: Vec::new() };
    let record = Record { seq: 1, purge_us: 2, row, windows: Vec::new() };
    let key = IndexKey::try_from([7; IndexKey::LENGTH].as_slice()).unwrap();
    for (at, name) in [(0, "format"), (1, "cipher"), (4, "key id")] {
        let mut bytes = record.encode(&key);
        bytes[at] = 9;
        let end = bytes.len() - CHECKSUM_BYTES;
        let sum = checksum(&key, &bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
        assert_eq!(Record::decode(&key, &bytes), Err(Damaged::Unknown), "{name}");
    }
}
