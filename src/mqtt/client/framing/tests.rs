use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{OTHER_PACKET_MAX_BYTES, PacketFraming, READ_BUFFER_BYTES};
use crate::client::codec::{CodecError, HEAD_MAX_BYTES, broker, encode};
use crate::client::packet::MqttVersion::{V5, V311};
use crate::client::packet::{
    IncomingPacket, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, PacketId, Qos, ReceivedMessage,
};

/// Reads a stream as a connection does: never more at once than the buffer has capacity for.
fn read(framing: &mut PacketFraming, mut stream: &[u8], mut at_once: usize) -> Result<Vec<IncomingPacket>, CodecError> {
    let mut packets = Vec::new();
    while !stream.is_empty() {
        let buffer = framing.buffer();
        let room = buffer.capacity() - buffer.len();
        assert!(room > 0);
        let (now, later) = stream.split_at(room.min(at_once).min(stream.len()));
        buffer.extend_from_slice(now);
        assert_eq!(buffer.capacity() - buffer.len(), room - now.len(), "the buffer grew by itself");
        stream = later;
        // Pieces of many sizes.
        at_once = at_once % 5000 * 7 + 1;
        while let Some(packet) = framing.next()? {
            packets.push(packet);
        }
    }
    Ok(packets)
}

fn message(payload: usize, properties: MessageProperties) -> MqttMessage {
    let payload = Bytes::from((0..=250).cycle().take(payload).collect::<Vec<u8>>());
    MqttMessage { topic: "a/b".parse().unwrap(), payload, qos: Qos::AtLeastOnce, retain: false, properties }
}

fn publish(version: MqttVersion, message: &MqttMessage) -> Vec<u8> {
    let packet_id = PacketId::new(7);
    let mut bytes = BytesMut::new();
    let packet = OutgoingPacket::Publish { message: message.clone(), packet_id, duplicate: false };
    encode(version, &packet, &mut bytes).unwrap();
    bytes.to_vec()
}

fn oversized(message: &MqttMessage, total: usize) -> IncomingPacket {
    let message = MqttMessage { payload: Bytes::new(), ..message.clone() };
    IncomingPacket::Publish(ReceivedMessage {
        message,
        packet_id: PacketId::new(7),
        duplicate: false,
        oversized: Some(total),
        subscription_ids: Vec::new(),
    })
}

fn packets(version: MqttVersion) -> impl Strategy<Value = Vec<IncomingPacket>> {
    let large = prop_oneof![9 => Just(300_usize), 1 => Just(3 * READ_BUFFER_BYTES)];
    vec(large.prop_flat_map(move |payload| broker::incoming(version, payload)), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn packets_come_out_as_they_went_in_however_the_stream_is_cut(
        (version, packets) in broker::version().prop_flat_map(|version| (Just(version), packets(version))),
        at_once in 1_usize..200_000,
        max_packet in prop_oneof![Just(150_usize), Just(2 * READ_BUFFER_BYTES), Just(usize::MAX)],
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for mut packet in packets {
            let bytes = broker::write(version, &packet);
            if let IncomingPacket::Publish(received) = &mut packet && bytes.len() > max_packet {
                received.message.payload = Bytes::new();
                received.oversized = Some(bytes.len());
            }
            stream.extend(bytes);
            expected.push(packet);
        }
        let mut framing = PacketFraming::new(version, max_packet);
        prop_assert_eq!(read(&mut framing, &stream, at_once), Ok(expected));
        framing.buffer();
        prop_assert!(framing.memory_bytes() <= 2 * READ_BUFFER_BYTES, "{} held", framing.memory_bytes());
    }

    #[test]
    fn garbage_does_not_panic(
        version in broker::version(),
        stream in vec(prop_oneof![any::<u8>(), 0..4_u8, Just(0x30_u8), Just(0x80_u8)], 0..400),
        at_once in 1_usize..100,
        max_packet in 0..200_usize,
    ) {
        let _ = read(&mut PacketFraming::new(version, max_packet), &stream, at_once);
    }

    #[test]
    fn a_changed_stream_does_not_panic(
        (version, packets) in broker::version().prop_flat_map(|version| (Just(version), packets(version))),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        max_packet in prop_oneof![Just(20_usize), Just(300_usize), Just(usize::MAX)],
    ) {
        let mut stream: Vec<u8> = packets.iter().flat_map(|packet| broker::write(version, packet)).collect();
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        let _ = read(&mut PacketFraming::new(version, max_packet), &stream, 1000);
    }
}

#[test]
fn a_message_of_the_largest_size_is_whole_and_a_larger_one_is_let_go_by() {
    for version in [V5, V311] {
        let message = message(3 * READ_BUFFER_BYTES, MessageProperties::default());
        let bytes = publish(version, &message);
        let mut framing = PacketFraming::new(version, bytes.len());
        let whole = read(&mut framing, &bytes, 10_000).unwrap();
        assert!(matches!(
            &whole[..],
            [IncomingPacket::Publish(ReceivedMessage { oversized: None, message: whole, .. })] if *whole == message
        ));
        let mut framing = PacketFraming::new(version, bytes.len() - 1);
        let stream = [&bytes[..], &[0xD0, 0]].concat();
        let passed = read(&mut framing, &stream, 10_000).unwrap();
        assert_eq!(passed, [oversized(&message, bytes.len()), IncomingPacket::PingResp]);
    }
}

#[test]
fn a_message_that_is_too_large_is_delivered_when_it_has_passed() {
    let message = message(READ_BUFFER_BYTES, MessageProperties::default());
    let bytes = publish(V5, &message);
    let mut framing = PacketFraming::new(V5, 100);
    assert_eq!(read(&mut framing, &bytes[..bytes.len() - 1], 999), Ok(Vec::new()));
    assert_eq!(read(&mut framing, &bytes[bytes.len() - 1..], 999), Ok(vec![oversized(&message, bytes.len())]));
}

#[test]
fn memory_is_bounded_while_a_message_goes_by() {
    // 200 MB of payload in steps of the buffer's capacity.
    let total = 200_000_000;
    let mut framing = PacketFraming::new(V311, 1000);
    assert_eq!(read(&mut framing, &[0x30, 0x80, 0x84, 0xAF, 0x5F, 0, 1, b'a'], 100), Ok(Vec::new()));
    let piece = vec![0; 1_000_000];
    let mut left = total - 3;
    let mut packets = Vec::new();
    while left > 0 {
        let now = left.min(piece.len());
        packets.extend(read(&mut framing, &piece[..now], usize::MAX).unwrap());
        assert!(framing.memory_bytes() <= 2 * READ_BUFFER_BYTES, "{} held", framing.memory_bytes());
        left -= now;
    }
    assert!(
        matches!(&packets[..], [IncomingPacket::Publish(ReceivedMessage { oversized: Some(200_000_005), .. })]),
        "{packets:?}"
    );
}

#[test]
fn an_announced_length_alone_takes_little_memory() {
    let mut framing = PacketFraming::new(V5, usize::MAX);
    assert_eq!(read(&mut framing, &[0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0, 1, b'a', 0], 100), Ok(Vec::new()));
    assert!(framing.buffer().capacity() <= 2 * READ_BUFFER_BYTES);
}

#[test]
fn a_large_packet_has_an_allocation_of_its_own_and_of_its_size() {
    let large = publish(V5, &message(40 * READ_BUFFER_BYTES, MessageProperties::default()));
    let mut framing = PacketFraming::new(V5, usize::MAX);
    let packets = read(&mut framing, &large, usize::MAX).unwrap();
    assert_eq!(framing.memory_bytes(), 0);
    drop(packets);
    // Later bytes are not put into its allocation either.
    let small = publish(V5, &message(20, MessageProperties::default()));
    let stream: Vec<u8> = [&large[..], &small].concat();
    let packets = read(&mut framing, &stream, usize::MAX).unwrap();
    assert_eq!(packets.len(), 2);
    framing.buffer();
    assert!(framing.memory_bytes() <= 2 * READ_BUFFER_BYTES);
}

#[test]
fn a_small_payload_does_not_keep_the_buffer() {
    let small = publish(V5, &message(20, MessageProperties::default()));
    let mut framing = PacketFraming::new(V5, usize::MAX);
    let address = framing.buffer().as_ptr();
    let packets = read(&mut framing, &small.repeat(10), usize::MAX).unwrap();
    assert_eq!(packets.len(), 10);
    // The buffer is reused though the packets live.
    assert_eq!(framing.buffer().as_ptr(), address);
}

#[test]
fn what_is_no_message_is_small() {
    // A SUBACK of 200 kB.
    let error = read(&mut PacketFraming::new(V5, usize::MAX), &[0x90, 0xC0, 0x9A, 0x0C], 100).unwrap_err();
    assert_eq!(error, CodecError::Oversized { packet: "SUBACK", size: 200_004, limit: OTHER_PACKET_MAX_BYTES });
    // Other packets may be larger than the limit for messages.
    assert_eq!(read(&mut PacketFraming::new(V5, 1), &[0xD0, 0], 100), Ok(vec![IncomingPacket::PingResp]));
}

#[test]
fn the_head_of_a_message_is_bounded_whether_or_not_the_message_is_taken() {
    let user = |count| (0..count).map(|n| (format!("user property {n:5}"), "value".to_owned())).collect();
    let with =
        |count| message(READ_BUFFER_BYTES, MessageProperties { user: user(count), ..MessageProperties::default() });
    let (fits, does_not) = (with(4_500), with(5_000));
    assert_eq!(
        read(&mut PacketFraming::new(V5, 1000), &publish(V5, &fits), 3000),
        Ok(vec![oversized(&fits, publish(V5, &fits).len())])
    );
    // The message after it is read as usual.
    let stream = [publish(V5, &does_not), publish(V5, &with(1))].concat();
    for max_packet in [1000, usize::MAX] {
        let packets = read(&mut PacketFraming::new(V5, max_packet), &stream, 3000).unwrap();
        let [IncomingPacket::Unusable { packet_id, reason }, IncomingPacket::Publish(_)] = packets.as_slice() else {
            panic!("{packets:?}")
        };
        assert_eq!((*packet_id, reason.contains(&HEAD_MAX_BYTES.to_string())), (PacketId::new(7), true), "{reason}");
    }
}

#[test]
fn a_message_with_a_broken_head_is_let_go_by_where_it_can_be_acknowledged() {
    for bytes in [&[0x30, 2, 0, 9][..], &[0x30, 3, 0, 1, b'a'], &[0x30, 4, 0, 1, b'a', 7], &[0x30, 1, 0], &[0x30, 0]] {
        for max_packet in [0, 100] {
            let packets = read(&mut PacketFraming::new(V5, max_packet), &[bytes, &[0xD0, 0]].concat(), 100).unwrap();
            let [IncomingPacket::Unusable { packet_id: None, .. }, IncomingPacket::PingResp] = packets.as_slice()
            else {
                panic!("{bytes:?}: {packets:?}")
            };
        }
    }
    // Not UTF-8, with a number to acknowledge; then one without its number.
    let not_text = [0x32, 7, 0, 1, 0xFF, 0, 9, 0, b'x', 0xD0, 0];
    for max_packet in [0, 100] {
        let packets = read(&mut PacketFraming::new(V5, max_packet), &not_text, 100).unwrap();
        let [IncomingPacket::Unusable { packet_id, .. }, IncomingPacket::PingResp] = packets.as_slice() else {
            panic!("{packets:?}")
        };
        assert_eq!(packet_id.map(PacketId::get), Some(9));
        let error = read(&mut PacketFraming::new(V5, max_packet), &[0x32, 2, 0, 9], 100).unwrap_err();
        assert!(matches!(error, CodecError::Malformed { .. }), "{error}");
    }
}

#[test]
fn a_limit_that_falls_lets_a_message_go_by_that_has_begun() {
    let large = message(10 * READ_BUFFER_BYTES, MessageProperties::default());
    let stream = publish(V5, &large);
    let mut framing = PacketFraming::new(V5, usize::MAX);
    let (begun, rest) = stream.split_at(3 * READ_BUFFER_BYTES);
    assert_eq!(read(&mut framing, begun, 3000), Ok(Vec::new()));
    framing.set_max_packet(0);
    assert_eq!(read(&mut framing, rest, 3000), Ok(vec![oversized(&large, stream.len())]));
}
