//! Restarts in place: what is bound, and what is handed over.

use std::future::pending;

use axum::routing::get;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

use super::*;

fn listening_on(address: ListenAddress) -> HttpConfig {
    HttpConfig { listen: vec![address], max_connections: 1, ..HttpConfig::default() }
}

#[tokio::test]
async fn an_address_is_bound_anew_when_another_scheme_is_spoken_there() {
    let left = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (handover, at) = (Handover::default(), left.local_addr().unwrap());
    handover.keep(ListenAddress::Tcp(at), left.into(), None);
    let listeners = Listeners::bind(&listening_on(ListenAddress::Tls(at)), &handover).await.unwrap();
    assert_eq!(listeners.tcp[0].0.local_addr().unwrap(), at);
    assert!(!listeners.handed_over);
}

#[tokio::test]
async fn a_socket_whose_file_is_gone_is_bound_anew_and_keeps_its_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (handover, address) = (Handover::default(), ListenAddress::Unix(path.clone()));
    handover.keep(address.clone(), left.into(), Some(SocketFile::new(path.clone())));
    let listeners = Listeners::bind(&listening_on(address), &handover).await.unwrap();
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    drop(listeners);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_full_box_hands_its_socket_over_while_the_last_answer_is_under_way() {
    let (handover, shutdown, address) = (Handover::default(), Shutdown::default(), "127.0.0.1:0".parse().unwrap());
    let config = listening_on(address);
    let listeners = Listeners::bind(&config, &handover).await.unwrap();
    let at = listeners.tcp[0].0.local_addr().unwrap();
    let (asked, mut was_asked) = mpsc::unbounded_channel();
    let never = move || {
        asked.send(()).unwrap();
        pending::<()>()
    };
    listeners.serve(&Router::new().route("/", get(never)), &config, None, &Arc::default(), &shutdown);
    let mut busy = TcpStream::connect(at).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    was_asked.recv().await.unwrap();
    let _waits = TcpStream::connect(at).await.unwrap();
    shutdown.request_restart();
    let kept = async {
        while handover.take(&config.listen[0]).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), kept).await.unwrap();
}
