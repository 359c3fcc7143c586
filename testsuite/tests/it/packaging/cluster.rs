//! Tests of the network that the chart makes: the names by which its nodes are dialled and called, and what Prometheus
//! scrapes.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{documents, has_helm, of_kind, packaging, rendered, tools, validate};

/// Returns the pods of a rendered chart, by the names under which their peers resolve them.
fn pods(documents: &[Value]) -> BTreeSet<String> {
    let mut pods = BTreeSet::new();
    for set in of_kind(documents, "StatefulSet") {
        let (name, service) = (set["metadata"]["name"].as_str(), set["spec"]["serviceName"].as_str());
        let (name, service) = (name.unwrap(), service.unwrap());
        let replicas = set["spec"]["replicas"].as_u64().unwrap();
        pods.extend((0..replicas).map(|index| format!("{name}-{index}.{service}")));
    }
    pods
}

/// Goal: the nodes of a network written like the examples find each other. Each peer is a pod, and each node also
/// answers to its pod's name.
#[test]
fn nodes_are_dialled_and_called_by_the_names_of_pods() {
    if !has_helm() {
        return;
    }
    let path = |name: &str| packaging("helm/values").join(name).display().to_string();
    let (fullnodes, archive) = (path("fullnodes.yaml"), path("archive.yaml"));
    let genesis = ["--set", "existingGenesisConfigMap=chain-genesis"];
    let values = ["--values", &*fullnodes, "--values", &*archive];
    let documents = documents(&rendered("validators.yaml", &[&values[..], &genesis[..]].concat()).unwrap());
    let pods = pods(&documents);
    assert_eq!(pods.len(), 8, "{pods:?}");
    let headless: BTreeSet<&str> = of_kind(&documents, "Service")
        .filter(|service| service["spec"]["clusterIP"] == "None")
        .filter_map(|service| service["metadata"]["name"].as_str())
        .collect();
    assert!(pods.iter().all(|pod| headless.contains(pod.split_once('.').unwrap().1)), "{pods:?}");
    let mut nodes = 0;
    for map in of_kind(&documents, "ConfigMap") {
        let Some(text) = map["data"]["node.yaml"].as_str() else { continue };
        let config = slipstream_config::parse(text, Path::new("/config/node.yaml")).unwrap();
        assert!(!config.network.peers.is_empty(), "{text}");
        for peer in config.network.peers.iter().map(ToString::to_string) {
            let (host, port) = peer.split_once('@').unwrap().1.rsplit_once(':').unwrap();
            assert!(pods.contains(host) && port == "7400", "{peer} is none of {pods:?}");
        }
        let own = format!(".{}-pods", map["metadata"]["name"].as_str().unwrap());
        for pod in pods.iter().filter(|pod| pod.ends_with(&own)) {
            for name in [pod.clone(), format!("{pod}.default.svc.cluster.local")] {
                assert!(config.api.allowed_hosts.contains(&name), "{name}: {:?}", config.api.allowed_hosts);
            }
            nodes += 1;
        }
    }
    assert_eq!(nodes, 8);
}

/// Whether a Service routes peers to nodes, with its own address.
fn leads_peers(service: &&Value) -> bool {
    service["spec"]["ports"][0]["port"] == 7400 && service["spec"]["clusterIP"] != "None"
}

/// Goal: an address for peers leads to one node, because peers expect this node's key there. From outside the cluster,
/// each node has an address of its own.
#[test]
fn an_address_for_peers_leads_to_one_node() {
    if !has_helm() {
        return;
    }
    let made = |more: &[&str]| documents(&rendered("validators.yaml", more).unwrap());
    assert_eq!(of_kind(&made(&[]), "Service").filter(leads_peers).count(), 0);

    let outside = made(&["--set", "groups.validators.peerService.type=NodePort"]);
    let dir = tempfile::tempdir().unwrap();
    validate(&tools().join("kubernetes"), dir.path(), "outside", &outside);
    let led: Vec<_> = of_kind(&outside, "Service").filter(leads_peers).collect();
    assert_eq!(led.len(), 4);
    for (index, service) in led.into_iter().enumerate() {
        assert_eq!(service["metadata"]["name"], format!("chain-validators-peers-{index}"));
        assert_eq!(service["spec"]["type"], "NodePort");
        let pod = &service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"];
        assert_eq!(*pod, format!("chain-validators-{index}"));
    }

    let alone = made(&["--set", "groups.validators.replicas=1"]);
    let led: Vec<_> = of_kind(&alone, "Service").filter(leads_peers).collect();
    assert!(led.len() == 1 && led[0]["metadata"]["name"] == "chain-validators-peers", "{led:?}");
}

/// Goal: a changed configuration restarts the pods, and an additional pod does not.
#[test]
fn more_pods_restart_none() {
    if !has_helm() {
        return;
    }
    let checksum = |more: &[&str]| {
        let documents = documents(&rendered("validators.yaml", more).unwrap());
        let set = of_kind(&documents, "StatefulSet").next().unwrap();
        set["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    let before = checksum(&[]);
    assert!(before.is_string());
    assert_eq!(checksum(&["--set", "groups.validators.replicas=7"]), before);
    assert_ne!(checksum(&["--set", "groups.validators.config.log.filter=debug"]), before);
}

/// Goal: the job that Prometheus makes of the chart's nodes is the one to which the chart's alerts apply.
#[test]
fn alerts_are_of_the_job_that_the_chart_makes() {
    if !has_helm() {
        return;
    }
    let documents = documents(&rendered("validators.yaml", &[]).unwrap());
    let monitor = of_kind(&documents, "ServiceMonitor").next().unwrap();
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let is_watched =
        |service: &&Value| wanted.iter().all(|(name, value)| service["metadata"]["labels"][name] == *value);
    let watched: Vec<_> = of_kind(&documents, "Service").filter(is_watched).collect();
    let [service] = watched[..] else { panic!("{watched:?}") };
    // Without a label, the operator names the job after the Service.
    let label = monitor["spec"]["jobLabel"].as_str().unwrap();
    let job = service["metadata"]["labels"][label].as_str().unwrap();

    let text = fs::read_to_string(packaging("prometheus/rules.yml")).unwrap();
    assert!(text.contains(&format!("up{{job=\"{job}\"}}")), "no alert says that a node of {job} is down");
    let rules: Vec<_> = of_kind(&documents, "PrometheusRule").collect();
    let [rules] = rules[..] else { panic!("{rules:?}") };
    assert_eq!(rules["spec"], serde_saphyr::from_str::<Value>(&text).unwrap());
    assert!(rendered("archive.yaml", &[]).is_ok_and(|text| !text.contains("PrometheusRule")));
}
