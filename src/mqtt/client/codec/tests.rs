use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::{QoS, v5};

use super::broker::{self, message, packet_id, subscription, text, version};
use super::header::put_variable_byte_integer;
use super::{CodecError, HEAD_MAX_BYTES, decode, encode, encoded_size};
use crate::client::packet::MqttVersion::{V5, V311};
use crate::client::packet::{
    ConnAck, Connect, IncomingPacket, MessageProperties, MqttMessage, MqttVersion, OutgoingPacket, PacketId, Qos,
    ReasonCode, RetainHandling, Subscription, SubscriptionId,
};

fn read(version: MqttVersion, bytes: &[u8]) -> Result<IncomingPacket, CodecError> {
    decode(version, BytesMut::from(bytes))
}

fn written(version: MqttVersion, packet: &OutgoingPacket) -> BytesMut {
    let mut bytes = BytesMut::new();
    encode(version, packet, &mut bytes).unwrap();
    bytes
}

/// A packet with this body after its fixed header.
fn frame(first: u8, body: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::from(&[first][..]);
    put_variable_byte_integer(&mut bytes, body.len());
    bytes.extend_from_slice(body);
    bytes
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

fn a_message() -> MqttMessage {
    MqttMessage {
        topic: "a/b".parse().unwrap(),
        payload: Bytes::from_static(b"payload"),
        qos: Qos::AtLeastOnce,
        retain: false,
        properties: MessageProperties::default(),
    }
}

fn a_connect() -> Connect {
    Connect {
        client_id: "box-1".into(),
        clean_start: false,
        keep_alive_s: 60,
        session_expiry_s: 3600,
        receive_maximum: 20,
        login: None,
        will: None,
    }
}

fn publish(message: MqttMessage) -> OutgoingPacket {
    OutgoingPacket::Publish { message, packet_id: Some(id(1)), duplicate: false }
}

fn connack(version: MqttVersion, bytes: &[u8]) -> ConnAck {
    match read(version, bytes) {
        Ok(IncomingPacket::ConnAck(connack)) => connack,
        other => panic!("{other:?}"),
    }
}

fn is_malformed(version: MqttVersion, bytes: &[u8]) -> bool {
    matches!(read(version, bytes), Err(CodecError::Malformed { .. }))
}

fn is_against_the_protocol(version: MqttVersion, bytes: &[u8]) -> bool {
    matches!(read(version, bytes), Err(CodecError::Protocol { .. }))
}

fn outgoing() -> impl Strategy<Value = OutgoingPacket> {
    let login = (text(), text()).prop_filter("a user name", |(user, _)| !user.is_empty());
    let connect = (text(), any::<bool>(), any::<u16>(), any::<u32>(), any::<u16>(), of(login), of(message(V5, 300)));
    let connect = connect.prop_map(|(client_id, clean_start, keep_alive_s, session_expiry_s, most, login, will)| {
        let receive_maximum = most.max(1);
        Connect { client_id, clean_start, keep_alive_s, session_expiry_s, receive_maximum, login, will }
    });
    let publish = (message(V5, 20_000), packet_id(), any::<bool>());
    prop_oneof![
        connect.prop_map(OutgoingPacket::Connect),
        publish.prop_map(|(message, packet_id, duplicate)| {
            let packet_id = Some(packet_id);
            OutgoingPacket::Publish { message, packet_id, duplicate }
        }),
        (packet_id(), any::<u8>())
            .prop_map(|(packet_id, reason)| OutgoingPacket::PubAck { packet_id, reason: ReasonCode(reason) }),
        (packet_id(), vec(subscription(), 1..20))
            .prop_map(|(packet_id, subscriptions)| OutgoingPacket::Subscribe { packet_id, subscriptions }),
        (packet_id(), vec(subscription().prop_map(|one| one.filter), 1..20))
            .prop_map(|(packet_id, filters)| OutgoingPacket::Unsubscribe { packet_id, filters }),
        Just(OutgoingPacket::PingReq),
        any::<u8>().prop_map(|reason| OutgoingPacket::Disconnect { reason: ReasonCode(reason) }),
    ]
}

proptest! {
    #[test]
    fn what_a_broker_writes_is_read_as_it_is(
        (version, packet) in version().prop_flat_map(|version| (Just(version), broker::incoming(version, 2000)))
    ) {
        prop_assert_eq!(read(version, &broker::write(version, &packet)), Ok(packet));
    }

    #[test]
    fn a_size_is_exact_and_packets_are_appended(
        (version, first, second) in version().prop_flat_map(|version| (Just(version), outgoing(), outgoing()))
    ) {
        let mut both = written(version, &first);
        prop_assert_eq!(both.len(), encoded_size(version, &first));
        encode(version, &second, &mut both).unwrap();
        let expected = [written(version, &first), written(version, &second)].concat();
        prop_assert_eq!(both, expected);
    }

    #[test]
    fn a_published_message_arrives_as_it_is(
        (version, message) in version().prop_flat_map(|version| (Just(version), message(version, 2000))),
        packet_id in packet_id(),
        duplicate in any::<bool>(),
    ) {
        // A PUBLISH has the same form in both directions.
        let packet_id = (message.qos == Qos::AtLeastOnce).then_some(packet_id);
        let sent = OutgoingPacket::Publish { message: message.clone(), packet_id, duplicate };
        let Ok(IncomingPacket::Publish(received)) = decode(version, written(version, &sent)) else { panic!("{sent:?}") };
        prop_assert_eq!(received.message, message);
        prop_assert_eq!(received.packet_id, packet_id);
        prop_assert_eq!(received.duplicate, duplicate && packet_id.is_some());
    }

    #[test]
    fn no_bytes_panic(
        version in version(),
        first in any::<u8>(),
        rest in vec(any::<u8>(), 0..300),
        cut in any::<bool>(),
    ) {
        let length = if cut { rest.len() / 2 } else { rest.len() };
        let mut bytes = BytesMut::from(&[first][..]);
        put_variable_byte_integer(&mut bytes, length);
        bytes.extend_from_slice(&rest);
        let _ = decode(version, bytes);
    }

    #[test]
    fn a_changed_packet_does_not_panic(
        (version, packet) in version().prop_flat_map(|version| (Just(version), broker::incoming(version, 50))),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = broker::write(version, &packet);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = read(version, &bytes);
        // Shorter, with a length that says so.
        let body = bytes.get(2..).unwrap_or_default();
        let _ = decode(version, frame(bytes[0], &body[..end.index(body.len() + 1)]));
    }
}

#[test]
fn an_old_broker_refuses_mqtt_5_in_its_own_words() {
    let refused = connack(V5, &[0x20, 2, 0, 1]);
    assert_eq!(refused.reason, ReasonCode::UNSUPPORTED_VERSION);
    assert!(!refused.session_present);
    assert_eq!(connack(V5, &[0x20, 2, 0, 0x84]).reason, ReasonCode::UNSUPPORTED_VERSION);
    assert_eq!(connack(V5, &[0x20, 3, 0, 0x84, 0]).reason, ReasonCode::UNSUPPORTED_VERSION);
}

#[test]
fn return_codes_of_3_1_1_become_reasons() {
    let expected =
        [(0, 0), (1, 0x84), (2, 0x85), (3, 0x88), (4, 0x86), (5, 0x87), (6, 0x80), (0x7F, 0x80), (0x9F, 0x9F)];
    for (code, reason) in expected {
        assert_eq!(connack(V311, &[0x20, 2, 0, code]).reason, ReasonCode(reason), "{code}");
    }
}

#[test]
fn a_refused_connection_has_no_session_and_needs_no_readable_properties() {
    assert!(connack(V311, &[0x20, 2, 1, 0]).session_present);
    assert!(!connack(V311, &[0x20, 2, 1, 5]).session_present);
    assert_eq!(connack(V5, &[0x20, 5, 0, 0x87, 2, 0xFF, 0xFF]).reason, ReasonCode::NOT_AUTHORIZED);
    assert!(is_malformed(V5, &[0x20, 5, 0, 0, 2, 0xFF, 0xFF]));
}

#[test]
fn a_receive_maximum_of_nothing_is_against_the_protocol() {
    assert!(is_against_the_protocol(V5, &[0x20, 6, 0, 0, 3, 0x21, 0, 0]));
}

#[test]
fn any_reason_code_is_carried_through() {
    for code in 0..=u8::MAX {
        let reason = ReasonCode(code);
        assert_eq!(read(V5, &[0x40, 3, 0, 7, code]), Ok(IncomingPacket::PubAck { packet_id: id(7), reason }));
        assert_eq!(read(V5, &[0x40, 4, 0, 7, code, 0]), Ok(IncomingPacket::PubAck { packet_id: id(7), reason }));
        assert_eq!(read(V5, &[0xE0, 1, code]), Ok(IncomingPacket::Disconnect { reason, text: None }));
        let suback = IncomingPacket::SubAck { packet_id: id(7), reasons: vec![ReasonCode(1), reason] };
        assert_eq!(read(V5, &[0x90, 5, 0, 7, 0, 1, code]), Ok(suback.clone()));
        assert_eq!(read(V311, &[0x90, 4, 0, 7, 1, code]), Ok(suback));
        if code >= 0x80 {
            assert_eq!(connack(V5, &[0x20, 3, 0, code, 0]).reason, reason);
        }
    }
}

#[test]
fn short_acknowledgements_are_successes() {
    let success = IncomingPacket::PubAck { packet_id: id(0x1234), reason: ReasonCode::SUCCESS };
    assert_eq!(read(V5, &[0x40, 2, 0x12, 0x34]), Ok(success.clone()));
    assert_eq!(read(V311, &[0x40, 2, 0x12, 0x34]), Ok(success));
    assert_eq!(read(V5, &[0xE0, 0]), Ok(IncomingPacket::Disconnect { reason: ReasonCode::SUCCESS, text: None }));
}

#[test]
fn the_words_of_a_disconnect_may_be_unreadable() {
    let taken_over = |text: Option<&str>| {
        Ok(IncomingPacket::Disconnect { reason: ReasonCode::SESSION_TAKEN_OVER, text: text.map(str::to_owned) })
    };
    assert_eq!(read(V5, &[0xE0, 7, 0x8E, 5, 0x1F, 0, 2, b'h', b'i']), taken_over(Some("hi")));
    assert_eq!(read(V5, &[0xE0, 7, 0x8E, 5, 0x1F, 0, 9, b'h', b'i']), taken_over(None));
    assert_eq!(read(V5, &[0xE0, 2, 0x8E, 0xFF]), taken_over(None));
}

#[test]
fn exactly_once_is_against_the_protocol() {
    for version in [V5, V311] {
        assert!(is_against_the_protocol(version, &[0x34, 6, 0, 1, b'a', 0, 1, 0]));
        for first in [0x50, 0x62, 0x70] {
            assert!(is_against_the_protocol(version, &[first, 2, 0, 1]), "{first:#x}");
        }
        assert!(is_malformed(version, &[0x36, 6, 0, 1, b'a', 0, 1, 0]));
    }
}

#[test]
fn what_only_clients_send_is_against_the_protocol() {
    for kind in [0, 1, 8, 10, 12] {
        assert!(is_against_the_protocol(V5, &[kind << 4, 0]), "{kind}");
    }
    assert!(is_against_the_protocol(V5, &[0xF0, 0]));
    assert!(is_against_the_protocol(V311, &[0xE0, 0]));
}

#[test]
fn packet_id_0_is_against_the_protocol() {
    assert!(is_against_the_protocol(V5, &[0x32, 6, 0, 1, b'a', 0, 0, 0]));
    for version in [V5, V311] {
        assert!(is_against_the_protocol(version, &[0x40, 2, 0, 0]));
        assert!(is_against_the_protocol(version, &[0x90, 4, 0, 0, 0, 0]));
        assert!(is_against_the_protocol(version, &[0xB0, 3, 0, 0, 0]));
    }
}

#[test]
fn a_topic_alias_in_place_of_a_topic_is_against_the_protocol() {
    assert!(is_against_the_protocol(V5, &[0x30, 6, 0, 0, 3, 0x23, 0, 1]));
}

#[test]
fn a_topic_from_a_broker_must_be_one() {
    assert!(is_malformed(V5, &[0x30, 5, 0, 2, 0xC3, 0x28, 0]));
    for topic in ["a/+", "#", "a\0b"] {
        let length = u8::try_from(topic.len()).unwrap();
        let bytes = frame(0x30, &[&[0, length], topic.as_bytes()].concat());
        assert!(is_against_the_protocol(V311, &bytes), "{topic:?}");
    }
}

#[test]
fn properties_do_not_reach_into_the_payload() {
    // A content type of three bytes within properties of five.
    assert!(is_malformed(V5, &[0x30, 11, 0, 1, b'a', 5, 0x03, 0, 3, b'x', b'y', b'z', b'p']));
    assert!(is_malformed(V5, &[0x30, 4, 0, 1, b'a', 9]));
}

#[test]
fn subscription_identifiers_are_read_and_all_properties_behind_them() {
    for count in 0..600 {
        let mut properties = [0x0B, 0x81, 0x01].repeat(count);
        properties.extend([0x01, 1, 0x26, 0, 1, b'k', 0, 1, b'v']);
        let mut body = BytesMut::from(&[0, 1, b'a'][..]);
        put_variable_byte_integer(&mut body, properties.len());
        body.extend_from_slice(&properties);
        body.extend_from_slice(b"payload");
        let bytes = frame(0x30, &body);
        let Ok(IncomingPacket::Publish(received)) = decode(V5, bytes) else { panic!("{count}") };
        assert_eq!(received.message.properties.user, [("k".into(), "v".into())]);
        assert_eq!(received.message.payload, "payload");
        assert_eq!(received.subscription_ids, vec![SubscriptionId::new(129).unwrap(); count]);
    }
}

#[test]
fn a_payload_is_a_slice_of_the_packet() {
    let bytes = written(V5, &publish(a_message()));
    let range = bytes.as_ptr_range();
    let Ok(IncomingPacket::Publish(received)) = decode(V5, bytes) else { panic!("no message") };
    assert!(range.contains(&received.message.payload.as_ptr()));
}

#[test]
fn user_properties_keep_their_order() {
    let user = vec![("b".into(), "1".into()), ("a".into(), "2".into()), ("b".into(), "3".into())];
    let message = MqttMessage {
        properties: MessageProperties { user: user.clone(), ..MessageProperties::default() },
        ..a_message()
    };
    let v5::Packet::Publish(read) = broker::read_v5(written(V5, &publish(message))) else { panic!("no message") };
    assert_eq!(read.properties.unwrap().user_properties, user);
}

#[test]
fn too_many_properties_are_refused() {
    let one = (0..6_000).map(|n| (format!("name of property {n}"), String::new())).collect();
    let message =
        MqttMessage { properties: MessageProperties { user: one, ..MessageProperties::default() }, ..a_message() };
    let bytes = written(V5, &publish(message));
    assert!(bytes.len() > HEAD_MAX_BYTES);
    assert!(matches!(decode(V5, bytes), Err(CodecError::Oversized { limit: HEAD_MAX_BYTES, .. })));
}

#[test]
fn a_long_text_is_an_error_and_leaves_the_buffer_as_it_was() {
    let long = "x".repeat(65_536);
    let data = Some(Bytes::from(long.clone()));
    let with = |properties| publish(MqttMessage { properties, ..a_message() });
    let packets = [
        OutgoingPacket::Connect(Connect { client_id: long.clone(), ..a_connect() }),
        OutgoingPacket::Connect(Connect { login: Some((long.clone(), String::new())), ..a_connect() }),
        OutgoingPacket::Connect(Connect { login: Some(("user".into(), long.clone())), ..a_connect() }),
        OutgoingPacket::Connect(Connect {
            will: Some(MqttMessage { payload: Bytes::from(long.clone()), ..a_message() }),
            ..a_connect()
        }),
        with(MessageProperties { response_topic: Some(long.clone()), ..MessageProperties::default() }),
        with(MessageProperties { correlation_data: data, ..MessageProperties::default() }),
        with(MessageProperties { content_type: Some(long.clone()), ..MessageProperties::default() }),
        with(MessageProperties { user: vec![(long.clone(), String::new())], ..MessageProperties::default() }),
        with(MessageProperties { user: vec![(String::new(), long)], ..MessageProperties::default() }),
    ];
    for packet in packets {
        let mut buffer = BytesMut::from(&b"before"[..]);
        let error = encode(V5, &packet, &mut buffer).unwrap_err();
        assert!(matches!(error, CodecError::TooLong { length: 65_536, .. }), "{error}");
        assert_eq!(buffer, "before");
    }
}

#[test]
fn a_packet_that_lacks_something_is_not_written() {
    let mut buffer = BytesMut::from(&b"before"[..]);
    let unsendable = [
        OutgoingPacket::Publish { message: a_message(), packet_id: None, duplicate: false },
        OutgoingPacket::Subscribe { packet_id: id(1), subscriptions: Vec::new() },
        OutgoingPacket::Unsubscribe { packet_id: id(1), filters: Vec::new() },
        OutgoingPacket::Connect(Connect { login: Some((String::new(), "secret".into())), ..a_connect() }),
        OutgoingPacket::Connect(Connect { client_id: "a\0b".into(), ..a_connect() }),
    ];
    for packet in unsendable {
        assert!(encode(V311, &packet, &mut buffer).is_err(), "{packet:?}");
        assert_eq!(buffer, "before");
    }
}

#[test]
fn a_connection_is_asked_for_with_its_will_and_login() {
    let will = MqttMessage {
        retain: true,
        properties: MessageProperties {
            content_type: Some("text/plain".into()),
            correlation_data: Some(Bytes::from_static(b"\0\xFF")),
            message_expiry_s: Some(9),
            user: vec![("k".into(), "v".into())],
            response_topic: Some("r".into()),
        },
        ..a_message()
    };
    let connect = Connect { login: Some(("user".into(), "secret".into())), will: Some(will), ..a_connect() };
    let packet = OutgoingPacket::Connect(connect);
    // After another packet in the buffer: rumqttc must still put the flags in the right place.
    let mut bytes = written(V5, &OutgoingPacket::PingReq);
    encode(V5, &packet, &mut bytes).unwrap();
    let v5::Packet::Connect(read, Some(will), Some(login)) = broker::read_v5(bytes.split_off(2)) else { panic!() };
    assert_eq!((&*read.client_id, read.clean_start, read.keep_alive), ("box-1", false, 60));
    let properties = read.properties.unwrap();
    assert_eq!((properties.session_expiry_interval, properties.receive_maximum), (Some(3600), Some(20)));
    assert_eq!(
        (will.topic, will.message, will.qos, will.retain),
        ("a/b".into(), "payload".into(), QoS::AtLeastOnce, true)
    );
    let properties = will.properties.unwrap();
    assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
    assert_eq!(properties.correlation_data.unwrap(), &b"\0\xFF"[..]);
    assert_eq!((properties.message_expiry_interval, properties.delay_interval), (Some(9), None));
    assert_eq!(properties.user_properties, [("k".into(), "v".into())]);
    assert_eq!(login, v5::Login::new("user", "secret"));

    let v4::Packet::Connect(read) = broker::read_v311(written(V311, &packet)) else { panic!() };
    assert_eq!((read.login, read.clean_session), (Some(v4::Login::new("user", "secret")), false));
    let will = read.last_will.unwrap();
    assert_eq!((&*will.topic, will.message, will.retain), ("a/b", "payload".into(), true));
}

#[test]
fn a_session_of_3_1_1_that_is_not_kept_is_clean() {
    let packet = OutgoingPacket::Connect(Connect { session_expiry_s: 0, ..a_connect() });
    let v4::Packet::Connect(read) = broker::read_v311(written(V311, &packet)) else { panic!() };
    assert!(read.clean_session);
}

#[test]
fn subscriptions_carry_their_options() {
    let subscription = |filter: &str, no_local, retain_handling| {
        let filter = filter.parse().unwrap();
        Subscription { filter, qos: Qos::AtLeastOnce, no_local, retain_handling, id: None }
    };
    let subscriptions = vec![
        subscription("a/+/#", true, RetainHandling::Never),
        subscription("b", false, RetainHandling::IfNew),
        // The standard does not allow No Local for a shared subscription.
        subscription("$share/g/c", true, RetainHandling::Never),
    ];
    let bytes = written(V5, &OutgoingPacket::Subscribe { packet_id: id(9), subscriptions });
    let v5::Packet::Subscribe(read) = broker::read_v5(bytes) else { panic!() };
    assert_eq!(read.pkid, 9);
    let options: Vec<_> =
        read.filters.iter().map(|f| (&*f.path, f.nolocal, f.preserve_retain, f.retain_forward_rule.clone())).collect();
    let never = v5::RetainForwardRule::Never;
    assert_eq!(options[0], ("a/+/#", true, false, never.clone()));
    assert_eq!(options[1], ("b", false, false, v5::RetainForwardRule::OnNewSubscribe));
    assert_eq!(options[2], ("$share/g/c", false, false, never));
    assert!(read.filters.iter().all(|filter| filter.qos == QoS::AtLeastOnce));
    assert_eq!(read.properties, None);

    let with_id =
        Subscription { id: SubscriptionId::new(268_435_455), ..subscription("d", true, RetainHandling::Never) };
    let packet = OutgoingPacket::Subscribe { packet_id: id(9), subscriptions: vec![with_id.clone()] };
    let v5::Packet::Subscribe(read) = broker::read_v5(written(V5, &packet)) else { panic!() };
    assert_eq!(read.properties.and_then(|properties| properties.id), Some(268_435_455));
    // Only MQTT 5 has it, and a packet has one for all of its filters.
    let v4::Packet::Subscribe(read) = broker::read_v311(written(V311, &packet)) else { panic!() };
    assert_eq!(read.filters.len(), 1);
    let two = OutgoingPacket::Subscribe { packet_id: id(9), subscriptions: vec![with_id.clone(), with_id] };
    assert!(matches!(encode(V5, &two, &mut BytesMut::new()), Err(CodecError::Unsendable { .. })));
}

#[test]
fn an_older_broker_gets_neither_properties_nor_reasons() {
    let ack = OutgoingPacket::PubAck { packet_id: id(0x1234), reason: ReasonCode::UNSPECIFIED_ERROR };
    assert_eq!(written(V5, &ack)[..], [0x40, 3, 0x12, 0x34, 0x80]);
    assert_eq!(written(V311, &ack)[..], [0x40, 2, 0x12, 0x34]);
    let ack = OutgoingPacket::PubAck { packet_id: id(0x1234), reason: ReasonCode::SUCCESS };
    assert_eq!(written(V5, &ack)[..], [0x40, 2, 0x12, 0x34]);
    let disconnect = OutgoingPacket::Disconnect { reason: ReasonCode(0x04) };
    assert_eq!(written(V5, &disconnect)[..], [0xE0, 1, 0x04]);
    assert_eq!(written(V311, &disconnect)[..], [0xE0, 0]);
    assert_eq!(written(V5, &OutgoingPacket::PingReq)[..], [0xC0, 0]);
    let long = MessageProperties { content_type: Some("x".repeat(70_000)), ..MessageProperties::default() };
    let read = broker::read_v311(written(V311, &publish(MqttMessage { properties: long, ..a_message() })));
    let v4::Packet::Publish(read) = read else { panic!() };
    assert_eq!((&*read.topic, read.pkid, read.payload), ("a/b", 1, "payload".into()));
}

#[test]
fn a_frame_has_the_length_it_announces() {
    for bytes in [&[][..], &[0xD0], &[0xD0, 0, 0], &[0xD0, 1], &[0xD0, 0x80], &[0xD0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]] {
        assert!(is_malformed(V5, bytes), "{bytes:?}");
    }
    assert!(is_malformed(V5, &[0xD1, 0]));
    assert!(is_malformed(V5, &[0xD0, 1, 0]));
}
