use proptest::prelude::*;

use super::*;
use crate::value::tests::{any_type, any_value, value_of};

/// Values with distant fields, and several of one type in consecutive fields.
fn any_values() -> impl Strategy<Value = Vec<(FieldId, Value)>> {
    let gap = prop_oneof![3 => 0..3_u32, 1 => any::<u16>().prop_map(u32::from)];
    let values = any_type().prop_flat_map(|kind| prop::collection::vec(value_of(kind), 1..5));
    prop::collection::vec((gap, values), 0..5).prop_map(|groups| {
        let mut next = 0;
        let mut all = Vec::new();
        for (gap, values) in groups {
            next += gap;
            for value in values {
                all.extend(u16::try_from(next).ok().map(|field| (FieldId(field), value)));
                next += 1;
            }
        }
        all
    })
}

prop_compose! {
    fn any_row()(
        entity in prop::collection::vec(any_value(), 1..4),
        event_us in any::<i64>(),
        values in any_values(),
    ) -> FeatureRow {
        FeatureRow { entity, event_us, values }
    }
}

prop_compose! {
    fn any_record()(
        seq in any::<u64>(),
        purge_us in any_purge_us(),
        row in any_row(),
        windows in prop::collection::vec(any::<u8>(), 0..40),
    ) -> FeatureRecord {
        FeatureRecord { seq, purge_us, row, windows }
    }
}

/// The parts of a record, encrypted or not.
#[derive(Debug)]
struct RecordParts {
    header: RecordHeader,
    seal: CipherHeader,
    windows: bool,
    body: Vec<u8>,
}

prop_compose! {
    fn any_parts()(
        seq in any::<u64>(),
        purge_us in any_purge_us(),
        row in any_row(),
        key_id in any::<u32>(),
        windows in any::<bool>(),
        body in prop::collection::vec(any::<u8>(), 0..40),
    ) -> RecordParts {
        let header = RecordHeader { seq, event_us: row.event_us, purge_us };
        // Half of them are plain.
        match key_id / 2 {
            key_id if key_id % 2 == 1 => RecordParts { header, seal: CipherHeader::of_entity(key_id), windows, body },
            _ => RecordParts { header, seal: CipherHeader::default(), windows: false, body: row.encode() },
        }
    }
}

impl RecordParts {
    fn stored(&self) -> StoredRecord<'_> {
        StoredRecord { header: self.header, seal: self.seal, windows: self.windows, body: &self.body }
    }

    fn in_form_1(&self, key: &IndexKey) -> Vec<u8> {
        record_in_form_1(&self.header, key, self.seal, self.windows, &self.body)
    }

    fn in_form_2(&self, key: &IndexKey) -> Vec<u8> {
        self.header.with_body(key, self.seal, self.windows, &self.body)
    }
}

fn any_purge_us() -> impl Strategy<Value = i64> {
    prop_oneof![3 => any::<i64>(), 1 => Just(i64::MAX)]
}

/// A row as earlier versions wrote it.
fn row_in_first_form(row: &FeatureRow) -> Vec<u8> {
    let mut bytes = row.event_us.to_le_bytes().to_vec();
    put_varint(&mut bytes, row.entity.len() as u64);
    for value in &row.entity {
        put_value(&mut bytes, value);
    }
    put_varint(&mut bytes, row.values.len() as u64);
    for (field, value) in &row.values {
        put_varint(&mut bytes, u64::from(field.0));
        put_value(&mut bytes, value);
    }
    bytes
}

/// A record as earlier versions wrote it.
fn record_in_form_1(header: &RecordHeader, key: &IndexKey, seal: CipherHeader, windows: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, seal.cipher, u8::from(windows), 0];
    bytes.extend_from_slice(&seal.key_id.to_le_bytes());
    bytes.extend_from_slice(&header.seq.to_le_bytes());
    bytes.extend_from_slice(&header.event_us.to_le_bytes());
    bytes.extend_from_slice(&header.purge_us.to_le_bytes());
    bytes.extend_from_slice(body);
    with_checksum(key, bytes)
}

/// The bytes of a record with one of them changed, and the right checksum.
fn changed(key: &IndexKey, record: &[u8], at: usize, to: u8) -> Vec<u8> {
    let mut content = record[..record.len() - CHECKSUM_BYTES].to_vec();
    content[at] = to;
    with_checksum(key, content)
}

fn key() -> IndexKey {
    IndexKey::try_from([7; IndexKey::LENGTH].as_slice()).unwrap()
}

fn any_key() -> impl Strategy<Value = IndexKey> {
    any::<[u8; IndexKey::LENGTH]>().prop_map(|bytes| IndexKey::try_from(bytes.as_slice()).unwrap())
}

proptest! {
    #[test]
    fn a_row_comes_back_as_it_was(row in any_row()) {
        prop_assert_eq!(FeatureRow::decode(&row.encode()), Ok(row));
    }

    #[test]
    fn a_row_of_an_earlier_version_is_read(row in any_row()) {
        let old = row_in_first_form(&row);
        prop_assert!(row.encode().len() <= old.len() + 1);
        prop_assert_eq!(FeatureRow::decode(&old), Ok(row));
    }

    #[test]
    fn a_row_without_join_keys_comes_back_as_it_was(row in any_row()) {
        let row = FeatureRow { entity: Vec::new(), ..row };
        prop_assert_eq!(FeatureRow::decode(&row.encode()), Ok(row));
    }

    #[test]
    fn a_row_with_a_changed_byte_is_refused_or_the_encoding_of_another(row in any_row(), change in 1..=255_u8) {
        let mut bytes = row.encode();
        // Without the mark of the form.
        for at in (0..8).chain(9..bytes.len()) {
            bytes[at] ^= change;
            if let Ok(other) = FeatureRow::decode(&bytes) {
                let encoding = other.encode();
                // A varint may be longer than it must be.
                prop_assert!(encoding == bytes || encoding.len() < bytes.len(), "byte {}", at);
            }
            bytes[at] ^= change;
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read(record in any_record(), key in any_key()) {
        let body = [row_in_first_form(&record.row), record.windows.clone()].concat();
        let old = record_in_form_1(&record.header(), &key, CipherHeader::default(), false, &body);
        prop_assert_eq!(verify(&key, &old), Ok(record.header()));
        prop_assert_eq!(FeatureRecord::decode(&key, &old), Ok(record.clone()));

        // A row of the journal gets a new header, and so does a record that is kept longer.
        let mixed = record.header().with_body(&key, CipherHeader::default(), false, &body);
        prop_assert_eq!(FeatureRecord::decode(&key, &mixed), Ok(record));
    }

    #[test]
    fn the_parts_of_a_record_come_back_from_both_forms(parts in any_parts(), key in any_key()) {
        for bytes in [parts.in_form_1(&key), parts.in_form_2(&key)] {
            prop_assert_eq!(StoredRecord::verify(&key, &bytes), Ok(parts.stored()));
            prop_assert_eq!(sequence_number(&bytes), parts.header.seq);
            prop_assert_eq!(event_us(&bytes), parts.header.event_us);
            prop_assert_eq!(purge_us(&bytes), parts.header.purge_us);
            prop_assert!(bytes[0] < 0x80);
        }
        // The sequence number and the time of removal may have ten bytes each; in form 1 they have eight.
        prop_assert!(parts.in_form_2(&key).len() <= parts.in_form_1(&key).len() + 4);
    }

    #[test]
    fn a_record_comes_back_as_it_was(record in any_record(), key in any_key()) {
        let bytes = record.encode(&key);
        let header = RecordHeader { seq: record.seq, event_us: record.row.event_us, purge_us: record.purge_us };
        prop_assert_eq!(verify(&key, &bytes), Ok(header));
        prop_assert_eq!(FeatureRecord::decode(&key, &bytes), Ok(record));
    }

    #[test]
    fn a_row_becomes_the_record_that_has_it_without_being_read(record in any_record(), key in any_key()) {
        let record = FeatureRecord { windows: Vec::new(), ..record };
        prop_assert_eq!(record.header().with_body(&key, CipherHeader::default(), false, &record.row.encode()), record.encode(&key));
    }

    #[test]
    fn a_changed_byte_of_a_record_is_noticed(parts in any_parts(), key in any_key(), change in 1..=255_u8) {
        for mut bytes in [parts.in_form_1(&key), parts.in_form_2(&key)] {
            for at in 0..bytes.len() {
                bytes[at] ^= change;
                prop_assert_eq!(StoredRecord::verify(&key, &bytes), Err(DamagedBytes::Checksum), "byte {}", at);
                bytes[at] ^= change;
            }
        }
    }

    #[test]
    fn a_record_with_a_changed_byte_and_the_right_checksum_keeps_what_is_read(
        parts in any_parts(),
        key in any_key(),
        to in any::<u8>(),
    ) {
        for bytes in [parts.in_form_1(&key), parts.in_form_2(&key)] {
            for at in 0..bytes.len() - CHECKSUM_BYTES {
                let bytes = changed(&key, &bytes, at, to);
                if let Ok(stored) = StoredRecord::verify(&key, &bytes) {
                    let again = stored.header.with_body(&key, stored.seal, stored.windows, stored.body);
                    prop_assert_eq!(StoredRecord::verify(&key, &again), Ok(stored), "byte {}", at);
                }
            }
        }
    }

    #[test]
    fn a_record_cut_off_or_under_another_key_is_noticed(record in any_record(), key in any_key(), other in any_key()) {
        let bytes = record.encode(&key);
        for end in 0..bytes.len() {
            prop_assert!(FeatureRecord::decode(&key, &bytes[..end]).is_err(), "{end} bytes");
        }
        if key != other {
            prop_assert_eq!(FeatureRecord::decode(&other, &bytes), Err(DamagedBytes::Checksum));
        }
    }

    #[test]
    fn a_row_cut_off_or_followed_by_more_is_noticed(row in any_row()) {
        let mut bytes = row.encode();
        for end in 0..bytes.len() {
            prop_assert!(FeatureRow::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        bytes.push(0);
        prop_assert_eq!(FeatureRow::decode(&bytes), Err(DamagedBytes::Malformed));
    }

    #[test]
    fn any_bytes_are_a_row_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
    }
}

#[test]
fn a_record_of_a_later_version_or_cipher_is_not_taken_for_damage() {
    let key = key();
    let header = RecordHeader { seq: 1, event_us: 1, purge_us: i64::MAX };
    let body = row(1, Vec::new()).encode();
    let seal = CipherHeader::of_entity(3);

    let old = record_in_form_1(&header, &key, CipherHeader::default(), false, &body);
    for (at, name) in [(0, "form"), (1, "cipher"), (2, "aggregates"), (3, "reserved"), (4, "key")] {
        assert_eq!(StoredRecord::verify(&key, &changed(&key, &old, at, 9)), Err(DamagedBytes::Unknown), "{name}");
    }

    let plain = header.with_body(&key, CipherHeader::default(), false, &body);
    let encrypted = header.with_body(&key, seal, true, &body);
    assert_eq!([plain[0], encrypted[0]], [0x42, 0x72]);
    for (at, to, name) in [(1, 9, "cipher"), (1, 0, "no cipher"), (2, 0, "no key")] {
        assert_eq!(
            StoredRecord::verify(&key, &changed(&key, &encrypted, at, to)),
            Err(DamagedBytes::Unknown),
            "{name}"
        );
    }
    let known = [0x01, 0x02, 0x42, 0x12, 0x52, 0x32, 0x72];
    for form in (0..=255).filter(|form| !known.contains(form)) {
        for bytes in [&old, &plain, &encrypted] {
            let bytes = changed(&key, bytes, 0, form);
            assert_eq!(StoredRecord::verify(&key, &bytes), Err(DamagedBytes::Unknown), "{form:#x}");
        }
    }
}

#[test]
fn a_record_that_is_kept_for_ever_says_so_in_one_way() {
    let key = key();
    let mut bytes = vec![FORM_2, 1];
    put_signed(&mut bytes, i64::MAX - 1);
    bytes.extend_from_slice(&row(1, Vec::new()).encode());
    assert_eq!(verify(&key, &with_checksum(&key, bytes)), Err(DamagedBytes::Malformed));
}

#[test]
fn a_plain_record_of_two_event_times_is_refused() {
    let key = key();
    let header = RecordHeader { seq: 1, event_us: 2, purge_us: 3 };
    let bytes = record_in_form_1(&header, &key, CipherHeader::default(), false, &row(1, Vec::new()).encode());
    assert_eq!(verify(&key, &bytes), Err(DamagedBytes::Forged));
}

#[test]
fn bytes_that_are_no_record_have_no_number_and_no_times() {
    let cut_off = [FORM_2, 0x80, 0, 0, 0, 0];
    for bytes in [&[][..], &[FORM_1; 3], &[FORM_1; 20], &[9; 50], &cut_off] {
        assert_eq!((sequence_number(bytes), event_us(bytes), purge_us(bytes)), (0, 0, i64::MAX), "{bytes:?}");
    }
}

fn row(event_us: i64, values: Vec<(FieldId, Value)>) -> FeatureRow {
    FeatureRow { entity: vec![Value::Int64(4711)], event_us, values }
}

fn floats(fields: impl IntoIterator<Item = u16>) -> Vec<(FieldId, Value)> {
    fields.into_iter().map(|field| (FieldId(field), Value::Float32(f32::from(field) / 8.0))).collect()
}

#[test]
fn values_of_one_type_in_consecutive_fields_have_one_type_for_all() {
    let time_us = 1_795_132_800_000_000;
    let with = |values| row(time_us, values).encode().len();
    let plain = with(Vec::new());
    assert_eq!(plain, 8 + 1 + 1 + 9 + 1);
    assert_eq!(with(floats(1..=20)), plain + 2 + 20 * 4);
    assert_eq!(with(floats([1])), plain + 2 + 4);
    assert_eq!(with(floats([1, 3])), plain + 2 * (2 + 4));
    // Not the last values: their count.
    let of_two_types = [floats(1..=20), vec![(FieldId(21), Value::Bool(true))]].concat();
    assert_eq!(with(of_two_types), plain + 3 + 20 * 4 + 3);

    let record =
        FeatureRecord { seq: 1_000_000, purge_us: i64::MAX, row: row(time_us, floats(1..=20)), windows: Vec::new() };
    assert_eq!(record.encode(&key()).len(), 110);
    let for_a_week = FeatureRecord { purge_us: time_us + 604_800_000_000, ..record.clone() };
    assert_eq!(for_a_week.encode(&key()).len(), 116);
    let old = row_in_first_form(&record.row);
    assert_eq!(record_in_form_1(&record.header(), &key(), CipherHeader::default(), false, &old).len(), 175);
}

#[test]
fn the_bytes_of_a_row_and_of_a_record_are_these() {
    let values = vec![
        (FieldId(1), Value::Bool(true)),
        (FieldId(2), Value::Bool(false)),
        (FieldId(4), Value::Int32(5)),
        (FieldId(5), Value::Bool(true)),
        (FieldId(6), Value::Bool(true)),
    ];
    let row = FeatureRow { entity: vec![Value::Bool(true)], event_us: 2, values };
    let runs = [&[5][..], &[1, 0x87, 2, 1, 0], &[1, 3, 5, 0, 0, 0], &[0, 0x47, 1, 1]].concat();
    let bytes = [&[2, 0, 0, 0, 0, 0, 0, 0][..], &[0, 1, 7, 1], &runs].concat();
    assert_eq!(row.encode(), bytes);

    let content = |bytes: Vec<u8>| bytes[..bytes.len() - CHECKSUM_BYTES].to_vec();
    let header = RecordHeader { seq: 300, event_us: 2, purge_us: 5 };
    let plain = header.with_body(&key(), CipherHeader::default(), false, &bytes);
    assert_eq!(content(plain), [&[0x02, 0xac, 2, 6][..], &bytes].concat());
    let encrypted = header.with_body(&key(), CipherHeader::of_entity(200), true, b"body");
    let head = [&[0x32, 1, 0xc8, 1][..], &[0xac, 2], &[2, 0, 0, 0, 0, 0, 0, 0], &[6]].concat();
    assert_eq!(content(encrypted), [&head[..], b"body"].concat());
}

#[test]
fn runs_that_are_written_in_no_such_way_are_refused() {
    let decoded =
        |runs: &[u8]| FeatureRow::decode(&[&[1; 8][..], &[0, 1, 7, 1], runs].concat()).map(|row| row.values.len());
    assert_eq!(decoded(&[0]), Ok(0));
    assert_eq!(decoded(&[3, 1, 0x87, 2, 1, 1, 1, 7, 1]), Ok(3));
    let last_two = [2, 0xfe, 0xff, 3, 0x47, 1, 1];
    assert_eq!(decoded(&last_two), Ok(2));

    let past_the_last_field = [2, 0xff, 0xff, 3, 0x47, 1, 1];
    let past_every_number = [&[2, 0, 7, 1][..], &[0xff; 9], &[1, 7, 1]].concat();
    for (runs, name) in [
        (&[3, 1, 0x87, 2, 1, 1, 0, 7, 1][..], "two runs that are one"),
        (&[2, 1, 7, 1, 0, 7, 1], "two values that are a run"),
        (&[2, 1, 0x87, 0, 1, 1], "a run of none"),
        (&[2, 1, 0x87, 1, 1, 1, 7, 1], "a run of one"),
        (&[2, 1, 0x87, 2, 1, 1], "a count of all that are left"),
        (&[2, 1, 0x87, 3, 1, 1, 1], "a count of more than are left"),
        (&[1, 1, 0x47, 1], "all that are left, of one"),
        (&[2, 1, 0xc7, 1, 1], "both flags"),
        (&[1, 1, 9, 1], "an unknown type"),
        (&[2, 1, 0x47, 1], "fewer values than announced"),
        (&past_the_last_field, "a field past the last"),
        (&past_every_number, "a field past every number"),
    ] {
        assert_eq!(decoded(runs), Err(DamagedBytes::Malformed), "{name}");
    }
}

#[test]
fn a_row_with_every_field_comes_back_as_it_was() {
    let values = (0..=u16::MAX).map(|field| (FieldId(field), Value::Bool(field % 3 == 0)));
    let row = row(1, values.collect());
    assert_eq!(FeatureRow::decode(&row.encode()), Ok(row));
}

#[test]
fn the_largest_row_fits_into_a_record_of_either_form() {
    let with = |length: usize| {
        let value = Value::Bytes(vec![0; length].into());
        FeatureRow { entity: vec![Value::Int64(1)], event_us: i64::MIN, values: vec![(FieldId(1), value)] }.encode()
    };
    let largest = with(ROW_BYTES_MAX - (with(ROW_BYTES_MAX).len() - ROW_BYTES_MAX));
    assert_eq!(largest.len(), ROW_BYTES_MAX);

    // A difference of 2⁶³ has the longest varint.
    let header = RecordHeader { seq: u64::MAX, event_us: i64::MIN, purge_us: 0 };
    let encrypted = [&largest[..], &[0; seal::TAG_BYTES]].concat();
    let of_entity = CipherHeader::of_entity(u32::MAX);
    assert_eq!(header.with_body(&key(), of_entity, false, &encrypted).len(), RECORD_BYTES_MAX);
    assert!(record_in_form_1(&header, &key(), of_entity, false, &encrypted).len() < RECORD_BYTES_MAX);
}

#[test]
fn the_largest_row_that_earlier_versions_took_is_read() {
    let value = |length: usize| Value::Bytes(vec![7; length].into());
    let row = FeatureRow { entity: vec![Value::Int64(1)], event_us: 1, values: vec![(FieldId(1), value(65_476))] };
    let old = row_in_first_form(&row);
    assert_eq!(old.len(), (64 << 10) - 36);
    assert_eq!(FeatureRow::decode(&old), Ok(row.clone()));

    let header = RecordHeader { seq: 1, event_us: 1, purge_us: 2 };
    let record = FeatureRecord { seq: 1, purge_us: 2, row, windows: Vec::new() };
    let stored = record_in_form_1(&header, &key(), CipherHeader::default(), false, &old);
    assert_eq!(FeatureRecord::decode(&key(), &stored), Ok(record));
}
