// Clients of JDBC for `tests.benchmarks.sleep`, which says who they are by `name=json`; they stop
// when their standard input ends, and say how they fared.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;

public class JdbcClients {
    static final Map<String, String> given = new HashMap<>();
    static final List<String> errors = new ArrayList<>();
    static final AtomicLong transactions = new AtomicLong();
    static final AtomicLong slowest = new AtomicLong();
    static volatile boolean isStopped = false;

    public static void main(String[] arguments) throws Exception {
        for (String one : arguments) {
            int at = one.indexOf('=');
            given.put(one.substring(0, at), one.substring(at + 1).replaceAll("^\"|\"$", ""));
        }
        List<Thread> working = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(given.get("clients")); number++) {
            Connection client = connect();
            working.add(new Thread(() -> work(client)));
        }
        System.out.println("connected");
        working.forEach(Thread::start);
        while (System.in.read() >= 0) {
            // Nothing is said.
        }
        isStopped = true;
        for (Thread one : working) {
            one.join();
        }
        String told = errors.stream()
            .map(error -> "\"" + error.replaceAll("[\"\\\\\n]", " ") + "\"")
            .collect(Collectors.joining(", "));
        System.out.println("{\"transactions\": " + transactions + ", \"errors\": [" + told
            + "], \"slowest_ms\": " + slowest + "}");
    }

    static Connection connect() throws SQLException {
        Properties properties = new Properties();
        properties.put("user", given.get("user"));
        properties.put("password", given.get("password"));
        properties.put("options", given.get("options"));
        properties.put("sslmode", "disable");
        properties.put("prepareThreshold", given.get("prepares").equals("true") ? "1" : "0");
        String address = given.get("host") + ":" + given.get("port");
        Connection client = DriverManager.getConnection(
            "jdbc:postgresql://" + address + "/" + given.get("database"), properties);
        client.setAutoCommit(false);
        return client;
    }

    static void work(Connection client) {
        try (PreparedStatement next = client.prepareStatement("SELECT ?::int + 1")) {
            while (!isStopped) {
                transact(client, next);
                long until = System.nanoTime()
                    + ThreadLocalRandom.current().nextLong(2_000_000_000L, 6_000_000_000L);
                while (!isStopped && System.nanoTime() < until) {
                    Thread.sleep(100);
                }
            }
            client.close();
        } catch (SQLException error) {
            synchronized (errors) {
                errors.add(error.getSQLState() + " " + error.getMessage());
            }
            if (!isStopped) {
                try {
                    work(connect());
                } catch (SQLException refused) {
                    throw new IllegalStateException(refused);
                }
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static void transact(Connection client, PreparedStatement next) throws SQLException {
        long began = System.nanoTime();
        int number = ThreadLocalRandom.current().nextInt(1000);
        next.setInt(1, number);
        try (var rows = next.executeQuery()) {
            rows.next();
            if (rows.getInt(1) != number + 1) {
                throw new SQLException(rows.getInt(1) + " after " + number);
            }
        }
        client.commit();
        transactions.incrementAndGet();
        long took = (System.nanoTime() - began) / 1_000_000;
        slowest.accumulateAndGet(took, Math::max);
    }
}
