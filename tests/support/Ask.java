// JDBC as applications use it: `java -cp JAR Ask.java URL`. Prints who it is connected as.
import java.sql.DriverManager;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        try (var connection = DriverManager.getConnection(arguments[0])) {
            var rows = connection.createStatement().executeQuery("SELECT 'reached ' || current_user");
            rows.next();
            System.out.println(rows.getString(1));
        }
    }
}
