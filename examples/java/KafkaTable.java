import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.cloudevents.CloudEvent;
import io.cloudevents.kafka.CloudEventDeserializer;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Keeps, in SQLite, a table of what exists in the clusters and a log of what happened, from a topic. Several of it, with one
 * group, share the partitions and the database. Arguments: brokers, topic, group, database.
 */
public class KafkaTable {
    // A deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last
    // record stood: partition and offset. Each change is in the log once; read it in the order of subject and sequence, since
    // some transports deliver late.
    static final String[] SCHEMA = {
        "PRAGMA journal_mode = WAL",
        """
        CREATE TABLE IF NOT EXISTS objects (
          cluster TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
          sequence TEXT, deleted INTEGER, object TEXT, stream INTEGER, position INTEGER,
          PRIMARY KEY (cluster, subject))""",
        """
        CREATE TABLE IF NOT EXISTS log (
          n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, cluster TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT)""",
        """
        CREATE TABLE IF NOT EXISTS snapshots (
          stream INTEGER, cluster TEXT, resource TEXT, namespace TEXT, name TEXT, position INTEGER, done INTEGER,
          PRIMARY KEY (stream, cluster, resource, namespace))""",
    };

    // Changes the row of an object only if the record is newer than what is there.
    static final String UPSERT = """
        INSERT INTO objects (cluster, subject, resource, namespace, uid, version, sequence, deleted, object, stream, position)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (cluster, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
          deleted = excluded.deleted, object = excluded.object, stream = excluded.stream, position = excluded.position
        WHERE excluded.sequence > objects.sequence OR excluded.sequence = ''
          OR excluded.sequence = objects.sequence AND excluded.deleted > objects.deleted""";
    static final String SEEN = """
        UPDATE objects SET stream = ?, position = ? WHERE cluster = ? AND subject = ? AND (stream <> ? OR position < ?)""";
    static final String LOG = """
        INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data) VALUES (?, ?, ?, ?, ?, ?)""";
    // Leaves a snapshot that is known as it is, since its mark may be repeated.
    static final String BEGIN = """
        INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, 0)
        ON CONFLICT DO UPDATE SET name = excluded.name, position = excluded.position, done = 0
        WHERE excluded.name <> snapshots.name AND excluded.position > snapshots.position""";
    static final String END = """
        UPDATE snapshots SET done = 1 WHERE stream = ? AND cluster = ? AND resource = ? AND namespace = ? AND name = ? AND NOT done""";
    // Removes what a complete snapshot has not shown.
    static final String SWEEP = """
        DELETE FROM objects WHERE stream = ?1 AND cluster = ?2 AND resource = ?3 AND (namespace = ?4 OR ?4 = '') AND NOT deleted
          AND position < (SELECT position FROM snapshots WHERE stream = ?1 AND cluster = ?2 AND resource = ?3 AND namespace = ?4)""";

    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        Connection db = DriverManager.getConnection("jdbc:sqlite:" + args[3] + "?busy_timeout=10000");
        for (String statement : SCHEMA) {
            try (PreparedStatement s = db.prepareStatement(statement)) {
                s.execute();
            }
        }
        db.setAutoCommit(false);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "group.id", args[2],
                "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "session.timeout.ms", "10000"); // after which another member gets the partitions of one that was killed
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new CloudEventDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            while (true) {
                ConsumerRecords<String, CloudEvent> records = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<String, CloudEvent> record : records) {
                    if (record.value() != null) { // a tombstone
                        apply(db, record.value(), record.partition(), record.offset());
                    }
                }
                db.commit();
                try {
                    consumer.commitSync(); // once it is stored
                } catch (CommitFailedException | RebalanceInProgressException e) { // another member has the partitions now
                    System.err.println(e); // what is not committed comes again
                }
            }
        }
    }

    static void apply(Connection db, CloudEvent event, int stream, long position) throws Exception {
        JsonNode data = JSON.readTree(event.getData().toBytes());
        String cluster = event.getSource().toString().substring("/clusters/".length());
        Object sequence = event.getExtension("sequence");
        String order = sequence == null ? "" : sequence.toString();
        JsonNode gvr = data.get("resource");
        String group = gvr.get("group").asText();
        String resource = (group.isEmpty() ? "" : group + "/") + gvr.get("version").asText() + "/" + gvr.get("resource").asText();
        String namespace = data.path("namespace").asText("");
        String type = data.get("type").asText();
        switch (type) {
            case "ADDED", "MODIFIED", "DELETED" -> {
                JsonNode metadata = data.get("object").get("metadata");
                int newer = run(db, UPSERT, cluster, event.getSubject(), resource, metadata.path("namespace").asText(""),
                        metadata.get("uid").asText(), metadata.get("resourceVersion").asText(), order, type.equals("DELETED"),
                        data.get("object").toString(), stream, position);
                if (newer == 0) { // the object exists nevertheless, which counts between the marks of a snapshot
                    run(db, SEEN, stream, position, cluster, event.getSubject(), stream, position);
                }
                // What was worked out from a list, or is of a snapshot, is no change where the state was known.
                if (newer > 0 || !data.path("snapshot").asBoolean() && !data.path("inferred").asBoolean()) {
                    run(db, LOG, event.getId(), cluster, event.getSubject(), order, type, data.get("object").toString());
                }
            }
            case "GAP" -> run(db, LOG, event.getId(), cluster, event.getSubject(), order, type, data.toString());
            case "SNAPSHOT" -> {
                String name = data.get("snapshot").asText();
                if (data.get("phase").asText().equals("started")) {
                    run(db, BEGIN, stream, cluster, resource, namespace, name, position);
                } else if (run(db, END, stream, cluster, resource, namespace, name) > 0 && data.get("complete").asBoolean()) {
                    run(db, SWEEP, stream, cluster, resource, namespace);
                }
            }
            default -> { } // of a later version
        }
    }

    static int run(Connection db, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setObject(i + 1, values[i]);
            }
            return statement.executeUpdate();
        }
    }
}
