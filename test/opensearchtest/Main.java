import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch with HTTP on 127.0.0.1. Its arguments are its folder and its port. */
class Main extends Node {
    private Main(Environment environment) {
        super(environment, List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] args) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", args[0])
            .put("http.port", args[1])
            .put("network.host", "127.0.0.1")
            .put("transport.port", "0")
            .put("discovery.type", "single-node")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new Main(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test")).start();
        Thread.currentThread().join();
    }
}
